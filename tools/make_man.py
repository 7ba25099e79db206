#!/usr/bin/env python3
"""Writes millrace.1, the manual page, from the program's own --help.

Usage: make_man.py PROGRAM OUTPUT"""
import re
import subprocess
import sys

ROFF_SPECIAL = {"\\": "\\e", "-": "\\-"}
OPTION = re.compile(r"^  (-\S.*?|\S+)(?:\s{2,}(.*))?$")


def escape(text):
    escaped = "".join(ROFF_SPECIAL.get(char, char) for char in text)
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped


def help_of(program, *command):
    done = subprocess.run([program, *command, "--help"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def subcommands(lines):
    """(name, description) below the heading Subcommands."""
    found, inside = [], False
    for line in lines:
        if line.endswith("ubcommands:"):
            inside = True
        elif inside and (match := re.match(r"^  (\w[\w-]*)\s+(.*)$", line)):
            found.append((match.group(1), match.group(2)))
        elif inside and line and not line.startswith(" "):
            inside = False
    return found


def options(lines):
    """The options of a --help as roff: a tagged paragraph each, headings as bold lines."""
    out = []
    if "Examples:" in lines:
        lines, examples = lines[:lines.index("Examples:")], lines[lines.index("Examples:") + 1:]
        return [*options(lines), ".PP", "\\fBExamples\\fR", ".nf", *map(escape, filter(str.strip, examples)), ".fi"]
    for line in lines:
        if not line.strip() or line.startswith("Usage:"):
            continue
        if not line.startswith(" "):
            out += [".PP", f"\\fB{escape(line.rstrip(':'))}\\fR"] if line.endswith(":") else []
        elif match := OPTION.match(line):
            out += [".TP", f"\\fB{escape(match.group(1))}\\fR"]
            if match.group(2):
                out.append(escape(match.group(2)))
        else:
            out.append(escape(line.strip()))
    return out


def main():
    program, output = sys.argv[1:3]
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    top = help_of(program)
    commands = subcommands(top)
    if not commands:
        raise SystemExit(f"{program} --help lists no subcommands; wanted a line 'Subcommands:' and names below it")
    page = [f'.TH MILLRACE 1 "" "{escape(version)}" "User Commands"', ".SH NAME",
            "millrace \\- serve language models behind an OpenAI\\-compatible API", ".SH SYNOPSIS",
            ".B millrace", ".I command", "[\\fIoption\\fR ...]", ".SH DESCRIPTION", escape(top[0]), ".SH COMMANDS"]
    for name, description in commands:
        page += [".TP", f"\\fB{escape(name)}\\fR", escape(description)]
    for name, _ in commands:
        lines = help_of(program, name)
        page += [f".SH MILLRACE {escape(name.upper())}", *options(lines[1:])]
        for inner, description in subcommands(lines):
            page += [f".SS millrace {escape(name)} {escape(inner)}", escape(description), *options(help_of(program, name, inner)[1:])]
    page += [".SH ENVIRONMENT", "Each option is a variable too: MILLRACE_KV_GIB for \\-\\-kv\\-gib. The command line wins over the environment, that over the file of "
             "\\-\\-config (YAML: kv\\-gib: 4), that over the default."]
    page += [".SH EXIT STATUS", "0 when all went well, 1 when the command failed, 2 for bad input: an unknown option, a missing or broken file.",
             ".SH SEE ALSO", "The documents of the project: README.md, docs/api.md, docs/cli.md, docs/models.md, docs/pipelines.md."]
    with open(output, "w", encoding="utf-8") as file:
        file.write("\n".join(page) + "\n")


if __name__ == "__main__":
    main()
