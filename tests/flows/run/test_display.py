import io
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console

from flows.run import display
from flows.run.display import Display


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def piped():
    return Console(file=io.StringIO(), force_terminal=False, width=200)


def terminal(width=200):
    return Console(file=io.StringIO(), force_terminal=True, width=width, _environ={"TERM": "xterm-256color"})


def lines(console):
    return console.file.getvalue().splitlines()


def test_a_pipe_gets_every_stage_and_a_step_line_now_and_then():
    console, clock = piped(), Clock()
    with Display(console, clock) as shown:
        shown.stage("starting services")
        shown.stage("train")
        shown.total(100)
        for step in range(1, 51):
            clock.now += 0.5
            shown.step(step, reward=0.123456, rollouts_per_second=1356.7)
    said = lines(console)
    assert said[:2] == ["starting services", "train"]
    assert said[2] == "train  step 1/100  reward 0.123  1,357 rollouts/s  50s left"
    assert [line.split()[2] for line in said[2:]] == [f"{step}/100" for step in [*range(1, 51, 4), 50]]
    assert "\x1b" not in console.file.getvalue()


@pytest.mark.parametrize("console", [piped, terminal])
def test_a_listener_gets_what_is_said_each_stage_and_a_step_every_ten_seconds(console):
    clock, heard = Clock(), []
    with Display(console(), clock) as shown:
        shown.say("before")
        with shown.heard_by(heard.append):
            shown.stage("train")
            shown.total(50)
            for step in range(1, 51):
                clock.now += 0.5
                shown.step(step, reward=0.5)
            shown.say("said")
            shown.stage("evaluate")
        shown.say("after")
    assert [line.partition("  reward")[0] for line in heard] == [
        "train",
        *(f"train  step {step}/50" for step in (1, 21, 41)),
        "said",
        "train  step 50/50",
        "evaluate",
    ]


def test_the_last_step_of_a_stage_is_never_left_out():
    console, clock = piped(), Clock()
    with Display(console, clock) as shown:
        shown.stage("warm-up")
        shown.step(1, loss=2.0)
        shown.step(2, loss=1.0)
        shown.stage("train")
        shown.step(1, note="nothing to learn from")
    assert lines(console) == [
        "warm-up",
        "warm-up  step 1  loss 2",
        "warm-up  step 2  loss 1",
        "train",
        "train  step 1  nothing to learn from",
    ]


def test_a_line_of_its_own_comes_in_its_order_and_is_no_markup():
    console, clock = piped(), Clock()
    with Display(console, clock) as shown:
        shown.stage("train")
        shown.step(1)
        shown.step(2)
        shown.say("port 4200 is in use [bold]:-)[/bold] " + "x" * 300)
    assert lines(console)[2:] == ["train  step 2", "port 4200 is in use [bold]:-)[/bold] " + "x" * 300]


HOSTILE = "\x1b[2J\x1b]52;c;ZXZpbA==\x07 \x1b]8;;http://evil\x07[red]a[/red]\r\u202eb\nrlvf: c"
SHOWN = r"\x1b[2J\x1b]52;c;ZXZpbA==\x07 \x1b]8;;http://evil\x07[red]a[/red]\r\u202eb\nrlvf: c"


@pytest.mark.parametrize("made", [piped, terminal])
def test_what_a_model_or_a_verifier_wrote_does_not_act_on_the_terminal(made):
    console, clock = made(), Clock()
    with Display(console, clock) as shown:
        shown.stage(f"stage {HOSTILE}")
        shown.total(1)
        shown.step(1, note=f"note {HOSTILE}")
        shown.say(f"said {HOSTILE}")
    written = console.file.getvalue()
    assert all(f"{where} {SHOWN}" in written for where in ("stage", "note", "said"))
    assert not any(each in written for each in ("\x1b[2J", "\x1b]", "\x07", "\u202e", "\x1b[31m"))
    assert [line for line in written.split("\n") if line.startswith("rlvf: c")] == []


def test_the_time_left_follows_the_newest_pace_and_counts_from_where_a_run_resumed():
    console, clock = piped(), Clock()
    with Display(console, clock) as shown:
        shown.stage("train")
        shown.total(1000, done=500)
        for step in range(501, 701):
            clock.now += 2 if step <= 600 else 36
            shown.step(step)
    assert lines(console)[1] == "train  step 501/1000  16m38s left"
    assert lines(console)[-1] == "train  step 700/1000  3h00m left"


def test_a_terminal_gets_a_bar_that_goes_at_the_end():
    console, clock = terminal(), Clock()
    with Display(console, clock) as shown:
        shown.stage("train [tiny]")
        shown.total(10, done=4)
        clock.now = 30
        shown.step(5, reward=0.75, rollouts_per_second=300)
        shown.say("a line above, after which the bar is drawn again")
        drawn = console.file.getvalue().splitlines()[-1]
    assert "train [tiny]" in drawn
    assert "━" in drawn
    assert "5/10" in drawn
    assert drawn.rstrip().endswith("reward 0.75  300 rollouts/s  2m30s left")
    assert console.file.getvalue().endswith("\x1b[2K"), "the bar stays on the screen"


def test_a_narrow_terminal_cuts_the_end_of_the_figures_and_not_the_count():
    console, clock = terminal(80), Clock()
    with Display(console, clock) as shown:
        shown.stage("train")
        shown.total(20, done=4)
        clock.now = 30
        shown.step(15, reward=0.325, pass_rate=0.0, rollouts_per_second=44, note="learned from 4 of 4 groups")
        shown.say("a line above, after which the bar is drawn again")
        drawn = console.file.getvalue().splitlines()[-1]
    assert "train" in drawn
    assert "15/20" in drawn
    assert "reward 0.3" in drawn
    assert drawn.rstrip().endswith("…")


def test_a_terminal_keeps_the_last_state_of_a_stage():
    console, clock = terminal(), Clock()
    with Display(console, clock) as shown:
        shown.stage("starting services")
        clock.now = 3
        shown.stage("warm-up [tiny]")
        shown.total(2)
        clock.now = 68
        shown.step(2, loss=0.5)
        shown.say("[it] is kept")
    said = console.file.getvalue()
    assert "starting services  (3s)" in said
    assert "warm-up [tiny]  step 2/2  loss 0.5  (1m05s)" in said
    assert "[it] is kept" in said
    assert said.count("step 2/2") == 1


def test_a_dumb_terminal_gets_plain_lines():
    console = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    with Display(console) as shown:
        shown.stage("train")
    assert lines(console) == ["train"]


class Broken(io.StringIO):
    def write(self, _):
        raise BrokenPipeError


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [None, Broken(), closed()])
def test_nobody_listening_stops_nothing(monkeypatch, stream):
    failures = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    for live in (False, True):
        console = Console(file=display._Forgiving(stream), force_terminal=live, _environ={"TERM": "xterm"})
        with Display(console) as shown:
            shown.stage("train")
            shown.total(2)
            shown.step(1, reward=0.5)
            shown.say("a line")
        shown.say("after the end")
    assert failures == []


CHILD = """
import sys
from flows.run.display import Display
with Display() as shown:
    shown.stage("train")
    for step in range(int(sys.argv[1])):
        shown.step(step)
        shown.say("x" * 100)
print("went on")
"""


@pytest.mark.parametrize("reader", ["head -1 >/dev/null", "exec 0<&-"])
def test_a_real_pipe_whose_reader_left_stops_nothing(reader):
    root = Path(display.__file__).parents[1]
    command = ["bash", "-c", '{ "$0" -c "$1" 2000 2>&1 >&3 | ' + reader + "; } 3>&1", sys.executable, CHILD]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)
    assert done.stdout == "went on\n"
    assert done.stderr == ""


def test_standard_output_is_left_to_the_results():
    root = Path(display.__file__).parents[1]
    command = [sys.executable, "-c", CHILD, "2"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)
    assert done.stdout == "went on\n"
    assert done.stderr.splitlines()[0] == "train"
