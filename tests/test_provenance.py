"""What tells one start of a run from another."""

from explore.runs.provenance import code, differences, history, session


def test_any_change_of_the_files_is_seen(tmp_path):
    package, linked = tmp_path / "package", tmp_path / "beside"
    for folder in (package / "inner", linked):
        folder.mkdir(parents=True)
    files = [package / "a.py", package / "inner" / "b.py", linked / "c.py"]
    for path in files:
        path.write_text("x = 1\n")
    (package / "notes.txt").write_text("")
    seen = {code([package, linked])}
    for path in files:
        path.write_text("x = 2\n")
        seen.add(code([package, linked]))
    files[0].rename(package / "d.py")
    seen.add(code([package, linked]))
    assert len(seen) == 5
    (package / "notes.txt").write_text("no code")
    assert code([package, linked]) in seen


def test_differences():
    before = session(device="cpu", threads=1)
    assert differences(before, session(device="cpu", threads=1)) == []
    now = before | {"threads": 2, "versions": before["versions"] | {"torch": "9.9"}, "code": "other"}
    torch = before["versions"]["torch"]
    expected = [
        "threads changed from 1 to 2; the last digits may change.",
        f"the software changed (torch from {torch} to 9.9, edited files of explore); the results may change.",
    ]
    assert differences(before, now) == expected
    graphs = [before | {"graphs": asked} for asked in ("auto", "off")]
    assert differences(*graphs) == ["graphs changed from auto to off; the last digits may change."]
    assert differences(before, graphs[0]) == []  # runs of before it was recorded
    assert history([before, before, now, now]) == expected
    one, two = (before | {"git": {"commit": commit, "changed": False}} for commit in ("aaa", "bbb"))
    assert differences(one, two) == ["the software changed (commit from aaa to bbb); the results may change."]
    assert differences(one | {"git": None}, two)[0].startswith("the software changed (commit from None")
