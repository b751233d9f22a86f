"""The values that pass through the tool: documents, records, resources and errors, each with its type.

`schema` turns dataclasses into JSON Schema and reads data as them, and `spec` holds the documents. `codec`
writes records and saved plans as data, and reads them. Everything here is a value: no clock, no files, no
network.
"""
