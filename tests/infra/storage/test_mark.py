"""A storage is known by what lies in it, and not by its name."""

from pathlib import Path

from fsspec.core import url_to_fs

from infra.storage.mark import has_mark, leave_mark
from infra.storage.place import join


def test_a_mark_is_found_where_it_was_left_and_nowhere_else(place: str) -> None:
    mark = leave_mark(place, "laptop")
    assert has_mark(place, mark)
    assert not has_mark(join(place, "elsewhere"), mark)


def test_what_a_storage_was_copied_from_is_not_what_it_is(tmp_path: Path) -> None:
    before = leave_mark(str(tmp_path), "laptop")
    after = leave_mark(str(tmp_path), "laptop")
    assert (has_mark(str(tmp_path), before), has_mark(str(tmp_path), after)) == (False, True)


def test_each_writer_leaves_one_file_however_often(place: str) -> None:
    for _ in range(3):
        marks = [leave_mark(place, writer) for writer in ("laptop", "pc")]
    assert all(has_mark(place, mark) for mark in marks)
    fs, root = url_to_fs(place)
    assert len(fs.find(root)) == 2
