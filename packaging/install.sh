#!/bin/sh
# Installs the command `sconce` from the files of a release, after comparing their checksums.
#
# usage: install.sh [RELEASE]     RELEASE: an https address or a folder with the release's files
#   SCONCE_INSTALL_DIR   folder of the command (default: ~/.local/bin)
set -eu

# The release workflow writes the release's address here.
release=${1:-}
folder=${SCONCE_INSTALL_DIR:-${HOME:?}/.local/bin}

fail() { echo "install.sh: $*" >&2; exit 1; }

[ -n "$release" ] || fail "which release? usage: install.sh RELEASE, an https address or a folder with its files"

case "$(uname -s)-$(uname -m)" in
  Linux-x86_64) target=x86_64-unknown-linux-gnu ;;
  Linux-aarch64 | Linux-arm64) target=aarch64-unknown-linux-gnu ;;
  Darwin-arm64) target=aarch64-apple-darwin ;;
  *) fail "no binary for $(uname -s) on $(uname -m): build it with \`cargo install --path crates/sconce\`" ;;
esac

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' INT TERM

# Copies or downloads one file of the release.
fetch() {
  case $release in
    https://* | http://127.0.0.1:* | http://localhost:*)
      if command -v curl > /dev/null; then
        curl --fail --silent --show-error --location --proto '=https,http' --output "$scratch/$1" "$release/$1"
      elif command -v wget > /dev/null; then
        wget --quiet --output-document="$scratch/$1" "$release/$1"
      else
        fail "needs curl or wget"
      fi ;;
    http://*) fail "$release is not https" ;;
    *) cp "$release/$1" "$scratch/$1" ;;
  esac || fail "cannot get $1 from $release"
}

fetch SHA256SUMS
archive=$(sed -n "s/^[0-9a-f]\{64\} [ *]\(sconce-[0-9][0-9A-Za-z.+-]*-$target\.tar\.gz\)\$/\1/p" "$scratch/SHA256SUMS")
case $archive in
  '') fail "SHA256SUMS of $release lists no archive for $target" ;;
  *[!0-9A-Za-z.+_-]*) fail "SHA256SUMS of $release lists several archives for $target" ;;
esac
fetch "$archive"

if command -v sha256sum > /dev/null; then sum=$(sha256sum "$scratch/$archive"); else sum=$(shasum -a 256 "$scratch/$archive"); fi
sum=${sum%% *}
grep -q "^$sum [ *]$archive\$" "$scratch/SHA256SUMS" ||
  fail "the checksum of $archive is $sum, which SHA256SUMS does not list: nothing was installed"

mkdir "$scratch/files"
tar -xzf "$scratch/$archive" -C "$scratch/files" --strip-components=1
version=$("$scratch/files/sconce" --version) || fail "the binary does not run on this machine (it needs glibc 2.28 or newer): nothing was installed"

mkdir -p "$folder"
# Moved within one file system, so that no half-written binary is ever there.
cp "$scratch/files/sconce" "$folder/.sconce.$$"
mv -f "$folder/.sconce.$$" "$folder/sconce"
echo "installed $version as $folder/sconce"
case ":$PATH:" in
  *":$folder:"*) ;;
  *) echo "$folder is not on your PATH: add it, or call $folder/sconce" ;;
esac
