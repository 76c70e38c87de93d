"""Fifty ordinary tasks, as a person gives them and as a model carries them out: what they call, turn by turn.

None of them is an attack, and none was chosen to be cheap: half of them look something up on the web and then change
something, which is what labels make dearer.
"""

from dataclasses import dataclass

from palyra.providers.scripted import ScriptCall

PORT = "{port}"
DOCS = f"http://docs.example.org:{PORT}"
NEWS = f"http://news.example.com:{PORT}"


@dataclass(frozen=True, slots=True)
class Task:
    """What the person says, and the calls that follow, one turn each."""

    message: str
    calls: tuple[ScriptCall, ...]


def read(path: str) -> ScriptCall:
    return ScriptCall(tool="files.read", arguments={"path": path})


def find(text: str) -> ScriptCall:
    return ScriptCall(tool="files.search", arguments={"text": text})


def look(folder: str = ".") -> ScriptCall:
    return ScriptCall(tool="files.list", arguments={"folder": folder})


def write(path: str, text: str, mode: str = "replace") -> ScriptCall:
    return ScriptCall(tool="files.write", arguments={"path": path, "text": text, "mode": mode})


def add(path: str, text: str) -> ScriptCall:
    return write(path, text, "append")


def drop(path: str) -> ScriptCall:
    return ScriptCall(tool="files.delete", arguments={"path": path})


def page(url: str) -> ScriptCall:
    return ScriptCall(tool="http.fetch", arguments={"url": url})


def post(url: str, body: str) -> ScriptCall:
    return ScriptCall(tool="http.fetch", arguments={"url": url, "method": "POST", "body": body})


def sh(command: str, access: str = "read") -> ScriptCall:
    return ScriptCall(tool="shell.run", arguments={"command": command, "access": access})


def change(command: str) -> ScriptCall:
    return sh(command, "write")


def hand(task: str) -> ScriptCall:
    return ScriptCall(tool="agent.delegate", arguments={"task": task})


def now() -> ScriptCall:
    return ScriptCall(tool="time.now", arguments={})


def task(message: str, *calls: ScriptCall) -> Task:
    return Task(message, calls)


TASKS = (
    # Reading: nothing is asked.
    task("What time is it?", now()),
    task("What is in notes.txt?", read("notes.txt")),
    task("List my files.", look()),
    task("Where do I mention milk?", find("milk")),
    task("Summarise the readme and the plan.", read("readme.md"), read("plan.md")),
    task("Compare plan.md with notes.txt.", read("plan.md"), read("notes.txt"), now()),
    task("Which files are in src, and what does main.py do?", look("src"), read("src/main.py")),
    task("Have somebody count the todos.", hand("Count the todos in plan.md.")),
    # Writing one's own words.
    task("Write 'buy bread' into shopping.txt.", write("shopping.txt", "buy bread")),
    task("Add eggs and butter to shopping.txt, then show it.", add("shopping.txt", "eggs\n"), read("shopping.txt")),
    task("Start a diary with today's date.", now(), write("diary.md", "# Sunday\n")),
    task("Make three notes.", write("a.md", "a"), write("b.md", "b"), write("c.md", "c")),
    task("Rewrite the readme so that it is shorter.", read("readme.md"), write("readme.md", "# Short\n")),
    task("Put the plan in order.", read("plan.md"), write("plan.md", "1. one\n2. two\n"), read("plan.md")),
    task("Delete a.md, b.md and c.md.", drop("a.md"), drop("b.md"), drop("c.md")),
    task("Collect all todos in one file.", find("todo"), write("todos.md", "- one\n")),
    task("Sort my notes into work.md and home.md.", read("notes.txt"), write("work.md", "w"), write("home.md", "h")),
    # Programs.
    task("Run the tests.", sh("pytest -q")),
    task("Run the tests until they pass.", sh("pytest -q"), write("src/main.py", "x = 1\n"), sh("pytest -q")),
    task("What changed since yesterday?", sh("git log --oneline"), sh("git diff")),
    task("Commit what I have.", sh("git status"), change("git add ."), change("git commit -m work")),
    task("Format the code and test it.", change("ruff format"), sh("pytest -q"), sh("git diff")),
    task("How large is the project?", sh("wc -l src/main.py"), look("src")),
    task(
        "Rename the function and see that all is well.",
        find("def main"),
        write("src/main.py", "def start(): ...\n"),
        sh("pytest -q"),
        write("src/main.py", "def start(): pass\n"),
        sh("pytest -q"),
    ),
    # Reading the web.
    task(f"What does {DOCS}/intro say?", page(f"{DOCS}/intro")),
    task("What is new today?", page(f"{NEWS}/today"), page(f"{NEWS}/yesterday")),
    task("Compare the two guides.", page(f"{DOCS}/one"), page(f"{DOCS}/two"), read("readme.md")),
    task("Look up how to install it, and have somebody check.", page(f"{DOCS}/install"), hand("Is it installed?")),
    # The web, then writing.
    task("Fetch the intro and take notes.", page(f"{DOCS}/intro"), write("intro.md", "notes on the intro")),
    task("Collect the news of the week.", page(f"{NEWS}/1"), page(f"{NEWS}/2"), write("news.md", "the week")),
    task(
        "Keep a file for each of the three pages.",
        page(f"{DOCS}/1"),
        write("web/1.md", "one"),
        page(f"{DOCS}/2"),
        write("web/2.md", "two"),
        page(f"{DOCS}/3"),
        write("web/3.md", "three"),
    ),
    task("Write an outline, look it up, then fill it.", write("o.md", "#"), page(f"{DOCS}/o"), write("o.md", "# full")),
    task("Update the readme by the guide.", read("readme.md"), page(f"{DOCS}/guide"), write("readme.md", "# New\n")),
    task("Translate the page into a file.", page(f"{NEWS}/de"), write("german.md", "Hallo")),
    task(
        "Append the day's headline to the diary.", add("diary.md", "\n"), page(f"{NEWS}/h"), add("diary.md", "news\n")
    ),
    task("Make a table of the prices.", page(f"{NEWS}/prices"), write("prices.csv", "a,b\n"), read("prices.csv")),
    # The web, then programs.
    task("The tests fail; look up why and run them again.", sh("pytest -q"), page(f"{DOCS}/pytest"), sh("pytest -q")),
    task(
        "Find out how the option is called and fix it.",
        page(f"{DOCS}/options"),
        write("src/main.py", "y = 2\n"),
        sh("pytest -q"),
        write("src/main.py", "y = 3\n"),
        sh("pytest -q"),
    ),
    task(
        "Fix it, test it, look it up, fix it again, test it again.",
        write("src/main.py", "z = 1\n"),
        sh("pytest -q"),
        page(f"{DOCS}/z"),
        write("src/main.py", "z = 2\n"),
        sh("pytest -q"),
        write("src/main.py", "z = 3\n"),
        sh("pytest -q"),
    ),
    task(
        "Write the change log from the page and commit.",
        sh("git log --oneline"),
        page(f"{DOCS}/style"),
        write("changelog.md", "- changes\n"),
        change("git add ."),
        change("git commit -m log"),
    ),
    task(
        "Check the guide and format.",
        change("ruff format"),
        page(f"{DOCS}/ruff"),
        change("ruff format"),
        sh("git diff"),
    ),
    # What an earlier task left behind.
    task("What did I note about the intro?", read("intro.md")),
    task("Shorten my notes on the intro.", read("intro.md"), write("intro.md", "shorter")),
    task("Put the news into the plan.", read("news.md"), write("plan.md", "news first\n"), sh("git diff")),
    task(
        "Begin a report, read what I kept, go on with it.",
        write("report.md", "# Report\n"),
        read("web/1.md"),
        add("report.md", "one\n"),
        read("web/2.md"),
        add("report.md", "two\n"),
    ),
    task("Search everything for prices and list it.", find("a,b"), write("found.md", "prices.csv\n")),
    task("Run the tests and note how they went.", sh("pytest -q"), write("tests.md", "all passed\n"), sh("pytest -q")),
    task("Clean up after the tests.", write("t.md", "t"), sh("pytest -q"), write("t.md", ""), drop("t.md")),
    # Sending.
    task("Post my note to the board.", read("notes.txt"), post(f"{NEWS}/board", "The milk is in the fridge.")),
    task(
        "Look at the board and answer twice.",
        page(f"{NEWS}/board"),
        post(f"{NEWS}/board", "first"),
        post(f"{NEWS}/board", "second"),
    ),
)
FILES = {
    "notes.txt": "The milk is in the fridge.\n",
    "readme.md": "# Readme\n",
    "plan.md": "todo: one\ntodo: two\n",
    "src/main.py": "def main(): ...\n",
}
USUAL = (
    write("shopping.txt", "tea"),
    write("src/usual.py", "u = 1\n"),
    write("web/usual.md", "u"),
    page(f"{DOCS}/usual"),
    page(f"{NEWS}/usual"),
    sh("pytest -q"),
    change("ruff format"),
    sh("git diff"),
    change("git add ."),
    change("git commit -m usual"),
    sh("git log --oneline"),
    sh("git status"),
)
"""What a person who works with it every day has allowed for good, in his own words."""
