"""Templates under a strict content policy and below any sub-path, and other people's files as they came."""

import hashlib
import re
import tomllib
from pathlib import Path

import pytest

from dashboard import VERSION

ROOT = Path(__file__).parents[2]
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
SCRIPTS = sorted((ROOT / "static").glob("*.js"))
SHEETS = sorted((ROOT / "static" / "css").glob("*.css"))
VENDOR = ROOT / "static" / "vendor"

FORBIDDEN = {
    "a script inside the page: move it to static/app.js": r"<script(?![^>]*\ssrc=)",
    "a style inside the page: move it to static/css": r"<style|\sstyle\s*=",
    "an event attribute: listen in static/app.js": r"\s(?:on[a-z]+|hx-on[:a-z-]*)\s*=",
    "an address that runs code": r"(?:javascript|js):",
    "a trigger filter, which htmx would evaluate": r"hx-trigger=\"[^\"]*\[",
    "a hard-coded path: use url or static, or the page breaks below a sub-path": r"(?:href|src|action|hx-[a-z]+)=\"/",
    "an address of another host": r"(?:href|src|action|hx-[a-z]+)=\"(?:https?:)?//",
    "a filter that switches escaping off": r"\|\s*safe\b|\bautoescape\b",
}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", TEMPLATES, ids=name)
def test_a_template_holds_nothing_that_the_content_policy_or_a_sub_path_forbids(path: Path) -> None:
    text = path.read_text()
    found = [why for why, pattern in FORBIDDEN.items() if re.search(pattern, text, re.IGNORECASE)]
    assert not found, f"{name(path)}: {'; '.join(found)}"


@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_a_script_evaluates_nothing_and_knows_no_address(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"\beval\(|new Function|innerHTML|insertAdjacentHTML|document\.write", text), name(path)
    assert not re.search(r"[\"'`]/(?:work|static|sign)", text), f"{name(path)} knows a path; take it from the page"


@pytest.mark.parametrize("path", SHEETS, ids=name)
def test_colours_stand_in_the_tokens_alone(path: Path) -> None:
    if path.name == "tokens.css":
        return
    found = [
        line.strip() for line in path.read_text().splitlines() if re.search(r":[^;]*(?:#[0-9a-f]{3,8}\b|rgb|hsl)", line)
    ]
    assert not found, f"{name(path)}: name the colour in tokens.css, for both themes: {found}"


def test_other_peoples_files_are_as_they_came_and_carry_a_licence() -> None:
    listed = dict(reversed(line.split(maxsplit=1)) for line in (VENDOR / "CHECKSUMS").read_text().splitlines())
    present = {str(path.relative_to(VENDOR)) for path in VENDOR.glob("*/*")}
    assert present == set(listed)
    for file, checksum in listed.items():
        assert hashlib.sha256((VENDOR / file).read_bytes()).hexdigest() == checksum, file
    assert all((folder / "LICENSE").exists() for folder in VENDOR.iterdir() if folder.is_dir())


def test_the_pages_name_the_version_of_the_project() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION
