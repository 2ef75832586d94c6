"""Files around the code: workflows, which run only on GitHub, issue forms and the citation."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

import explore

yaml = pytest.importorskip("yaml")
ROOT = Path(explore.__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


WORKFLOWS = {path.name: read(path) for path in sorted(ROOT.glob(".github/workflows/*.yml"))}
JOBS = [pytest.param(job, id=f"{f}: {name}") for f, flow in WORKFLOWS.items() for name, job in flow["jobs"].items()]


@pytest.mark.parametrize("file", WORKFLOWS)
def test_a_workflow_may_read_only_and_runs_once(file):
    workflow = WORKFLOWS[file]
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["group"].startswith(file.removesuffix(".yml"))  # a called workflow needs its own


@pytest.mark.parametrize("job", JOBS)
def test_a_job_has_a_limit_and_runs_scripts_of_the_repository(job):
    if "uses" in job:
        assert (ROOT / job["uses"]).exists()
        return
    assert job["timeout-minutes"] <= 120
    for step in job["steps"]:
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", step["uses"])
        else:
            assert "run" not in step or os.access(ROOT / step["run"].split()[0], os.X_OK)


def test_the_lowest_python_is_tested():
    tested = WORKFLOWS["tests.yml"]["jobs"]["tests"]["strategy"]["matrix"]["python"]
    assert PROJECT["requires-python"] == f">={tested[0]}"


@pytest.mark.skipif(not shutil.which("actionlint"), reason="actionlint is not installed")
def test_actionlint():
    found = subprocess.run(["actionlint"], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("form", ["bug", "feature"])
def test_a_form_asks_for_the_version(form):
    fields = {field["id"]: field for field in read(f".github/ISSUE_TEMPLATE/{form}.yml")["body"]}
    assert "`explore --version`" in fields["version"]["attributes"]["label"]
    assert fields["version"]["validations"]["required"]


def test_the_citation_is_of_this_version():
    citation = read("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    for key, value in {"version": "version", "license": "license", "abstract": "description"}.items():
        assert citation[key] == PROJECT[value]
    assert citation["keywords"] == PROJECT["keywords"]
