# A policy on what `fleetform plan --json` prints, for conftest or OPA:
#
#   fleetform plan --json > plan.json
#   conftest test --policy examples/policy plan.json
#
# The fields stand in schemas/plan.schema.json.
package main

import rego.v1

most_added := 10

deny contains "the cost is unknown: a node has no known price" if {
	not is_number(input.cost.hourly_after)
}

deny contains message if {
	is_number(input.cost.hourly_before)
	is_number(input.cost.hourly_after)
	added := input.cost.hourly_after - input.cost.hourly_before
	added > most_added
	message := sprintf("the plan costs %v USD/h more, and %v is the most that one change may add", [added, most_added])
}

deny contains message if {
	some action in input.actions
	action.op == "delete"
	not action.forget
	startswith(action.address, "volume/")
	message := sprintf("%s would be deleted: its data would be lost", [action.address])
}
