"""Compares what the binary imports from macOS with imports.txt.

usage: imports.py stubs SDK      writes a stub of each library in imports.txt, for the linker
       imports.py check BINARY   fails if the binary has imports that the list lacks
       imports.py bless BINARY   rewrites the list from the binary
"""

import pathlib
import re
import struct
import sys

LIST = pathlib.Path(__file__).with_name("imports.txt")
# zig knows all exports of this library, so linking checks its symbols.
SYSTEM = "/usr/lib/libSystem.B.dylib"
# The library of a symbol that no stub has.
NOWHERE = "?"


def listed():
    """Library → symbols in imports.txt."""
    libraries = {}
    for line in LIST.read_text().splitlines():
        if line.startswith("  "):
            symbols.add(line.strip())
        elif line and not line.startswith("#"):
            symbols = libraries.setdefault(line, set())
    return libraries


def imported(binary):
    """Library → symbols of a Mach-O file: all its imports, except those from libSystem."""
    data = pathlib.Path(binary).read_bytes()
    magic, cpu, _, _, commands = struct.unpack_from("<5I", data)
    assert (magic, cpu) == (0xFEEDFACF, 0x0100000C), f"{binary} is no 64-bit Mach-O file for ARM"
    load_dylib, load_weak_dylib, reexport_dylib, symtab = 0xC, 0x80000018, 0x8000001F, 0x2
    libraries, at = [], 32
    for _ in range(commands):
        command, size = struct.unpack_from("<2I", data, at)
        if command in (load_dylib, load_weak_dylib, reexport_dylib):
            name = at + struct.unpack_from("<I", data, at + 8)[0]
            libraries.append(text(data, name))
        elif command == symtab:
            table = struct.unpack_from("<4I", data, at + 8)
        at += size
    symbols = {library: set() for library in libraries}
    entries, count, strings, _ = table
    for i in range(count):
        name, kind, _, about, _ = struct.unpack_from("<IBBHQ", data, entries + 16 * i)
        # An undefined external symbol that is not for a debugger.
        if kind & 0xE0 == 0 and kind & 0x0E == 0 and kind & 1:
            ordinal = about >> 8
            library = libraries[ordinal - 1] if 1 <= ordinal <= len(libraries) else NOWHERE
            symbols.setdefault(library, set()).add(text(data, strings + name))
    symbols.pop(SYSTEM, None)
    return symbols


def text(data, at):
    return data[at : data.index(0, at)].decode()


def stubs(sdk):
    for library, symbols in listed().items():
        framework = re.fullmatch(r"(/System/Library/Frameworks/(\w+)\.framework)/.*", library)
        plain = re.fullmatch(r"(/usr/lib/lib\w+)\..*dylib", library)
        assert framework or plain, f"{LIST.name}: {library} is neither a framework nor a library in /usr/lib"
        path = f"{framework[1]}/{framework[2]}.tbd" if framework else f"{plain[1]}.tbd"
        file = pathlib.Path(sdk + path)
        file.parent.mkdir(parents=True, exist_ok=True)
        names = ", ".join(f"'{s}'" for s in sorted(symbols))
        exports = f"exports:\n  - targets: [ arm64-macos ]\n    symbols: [ {names} ]\n" if symbols else ""
        file.write_text(
            "--- !tapi-tbd\ntbd-version: 4\ntargets: [ arm64-macos ]\n"
            f"install-name: '{library}'\ncurrent-version: 1\ncompatibility-version: 1\n{exports}...\n"
        )


def check(binary):
    known, found = listed(), imported(binary)
    new = [f"{library}: {s}" for library, all in found.items() for s in sorted(all - known.get(library, set()))]
    new += [f"{library}, with no symbol used" for library, all in found.items() if library not in known and not all]
    gone = [f"{library}: {s}" for library, all in known.items() for s in sorted(all - found.get(library, set()))]
    for line in gone:
        print(f"no longer imported  {line}")
    for line in new:
        print(f"NOT IN THE LIST     {line}")
    print(f"{sum(map(len, found.values()))} symbols from {len(found)} libraries: {len(new)} new, {len(gone)} gone")
    if new:
        sys.exit(f"the binary has imports that {LIST.name} does not list; see README.md")


def bless(binary):
    found = imported(binary)
    if lost := sorted(found.pop(NOWHERE, [])):
        sys.exit(f"no known library has {', '.join(lost)}; add each under its library in {LIST.name} and run again")
    # Some crates link libraries of which the binary uses nothing. The linker still needs their
    # stubs.
    found = dict.fromkeys(listed(), set()) | found
    groups = ["\n".join([library, *(f"  {s}" for s in sorted(found[library]))]) for library in sorted(found)]
    LIST.write_text("# Imports of `sconce` from macOS, except from libSystem. See README.md.\n\n" + "\n\n".join(groups) + "\n")


if __name__ == "__main__":
    {"stubs": stubs, "check": check, "bless": bless}[sys.argv[1]](sys.argv[2])
