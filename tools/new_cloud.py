"""Begin a driver for a cloud: `python tools/new_cloud.py scaleway --variable SCW_SECRET_KEY`.

Writes the driver, a stand-in of the cloud and the test, which passes at once, and adds the lines in all other
places that name drivers. Then make the driver and its stand-in those of the cloud: docs/providers.md.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

import jinja2

ROOT = Path(__file__).parents[1]
TEMPLATES = Path(__file__).parent / "new_cloud"
FILES = {
    "driver.py.jinja": "providers/cloud/any/{name}.py",
    "server.py.jinja": "tests/providers/{name}/server.py",
    "test.py.jinja": "tests/providers/{name}/test_{name}.py",
}
"""Template → the file that it becomes."""
EXAMPLE = """\
    "{name}": {{
        "regions": "[east]",
        "credentials": "{{key: {variable}}}",
        "image": "ubuntu-24.04",
    }},"""
LINES = (
    ("providers/cloud/__init__.py", r'    "vultr": .*', '    "{name}": "providers.cloud.any.{name}:{name}",'),
    ("pyproject.toml", r"vultr = .*", '{name} = "providers.cloud:cloud"'),
    ("declarative/model/spec/policy.py", r'    "vultr": .*', '    "{name}": ("{prefix}_*",),'),
    ("declarative/language/importers/drafts.py", r'    "vultr": .*', '    "{name}": {{"driver": "{name}"}},'),
    (
        "providers/cloud/settings.py",
        r'    "vultr": \{\n(?:        .*\n)*    \},',
        EXAMPLE,
    ),
    ("tests/project/test_readme.py", r'        "vultr",', '        "{name}",'),
    (
        "tests/providers/cloud/test_missing_settings.py",
        r'        \("vultr", .*',
        '        ("{name}", "regions", ("`image: ",)),',
    ),
    (
        "docs/clouds.md",
        r"\| `digitalocean`, `vultr` \| tags or names.*",
        "| `{name}` | tags or names, looked for before and after | yes | a small server | not yet |",
    ),
    (
        "docs/clouds.md",
        r"\| `vultr` \| instances;.*",
        "| `{name}` | machines, GPUs, prices | without tags, grow in place | `{variable}` |",
    ),
    (
        "docs/clouds.md",
        r"type: backend\nname: vu\ndriver: vultr\n(?:.+\n)*---",
        "type: backend\nname: {name}\ndriver: {name}\nregions: [east]\nimage: ubuntu-24.04\n---",
    ),
)
"""File, a line of it (or lines) that stand there for another driver, and what comes after them."""
WORDS = (
    ("README.md", "`vultr`, ", "`vultr`, `{name}`, "),
    ("docs/import.md", "| `vultr`, ", "| `vultr`, `{name}`, "),
    ("docs/clouds.md", "| `digitalocean`, `vultr`, ", "| `digitalocean`, `vultr`, `{name}`, "),
    ("docs/security.md", "`VULTR_*`, ", "`VULTR_*`, `{prefix}_*`, "),
    ("providers/cloud/settings.py", 'finds_own = ("ec2", ', 'finds_own = ("ec2", "{name}", '),
    ("tests/providers/cloud/test_invalid_answers.py", '"vultr", ', '"vultr", "{name}", '),
)
"""File, words in it, and the words that replace them where they stand first."""


def begin(root: Path, name: str, variable: str) -> list[str]:
    """Write the files and lines of a driver under `root`; returns their paths. `variable` is that of the
    environment that has the key. `ValueError` if a file is there, or a place is not.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]{1,30}", name):
        raise ValueError(f"`{name}` is not the name of a module: lower case letters, digits and `_`")
    prefix = variable.partition("_")[0]
    names = {
        "name": name,
        "variable": variable,
        "prefix": prefix,
        "Name": "".join(w.capitalize() for w in name.split("_")),
    }
    texts: dict[Path, str] = {}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701
    )
    for template, path in FILES.items():
        target = root / path.format(**names)
        if target.exists():
            raise ValueError(f"{target} exists")
        texts[target] = environment.get_template(template).render(names)

    def read(path: str) -> str:
        return texts.get(root / path) or (root / path).read_text(encoding="utf-8")

    for path, pattern, line in LINES:
        text = read(path)
        place = re.search(rf"^{pattern}$", text, re.MULTILINE)
        if place is None:
            raise ValueError(f"{path} has no line like {pattern}: correct tools/new_cloud.py")
        texts[root / path] = f"{text[: place.end()]}\n{line.format(**names)}{text[place.end() :]}"
    for path, old, new in WORDS:
        text = read(path)
        if old not in text:
            raise ValueError(f"{path} has no {old!r}: correct tools/new_cloud.py")
        texts[root / path] = text.replace(old, new.format(**names), 1)
    for target, text in texts.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return sorted(str(target.relative_to(root)) for target in texts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="of the driver: lower case letters, digits and `_`")
    parser.add_argument("--variable", help="of the cloud's own tools, with the key (default: NAME_API_KEY)")
    given = parser.parse_args()
    try:
        paths = begin(ROOT, given.name, given.variable or f"{given.name.upper()}_API_KEY")
    except ValueError as error:
        sys.exit(f"error: {error}")
    code = [path for path in paths if path.endswith(".py")]
    for words in (["check", "--fix", "--quiet"], ["format", "--quiet"]):  # the order of imports is the name's
        subprocess.run(
            [sys.executable, "-m", "ruff", *words, *code], cwd=ROOT, check=False, stdout=subprocess.DEVNULL
        )
    sys.stdout.write("".join(f"{path}\n" for path in paths))
