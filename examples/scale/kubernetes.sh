#!/usr/bin/env bash
# The manifests of deploy/kubernetes, without a cluster: schemas, references, and a server with their
# arguments, probes, metrics and end (docs/kubernetes.md).
#
# usage: examples/scale/kubernetes.sh [small|full] [BINARY]
#
# full takes the schemas of every version of Kubernetes since 1.27.
set -euo pipefail
mode=${1:-small}
[ $# -eq 0 ] || shift
case $mode in
  small) ;;
  full) export SCONCE_K8S_VERSIONS=all ;;
  *) echo "usage: $0 [small|full] [BINARY]" >&2; exit 2 ;;
esac
exec "$(dirname "$0")/../../deploy/kubernetes/check" "$@"
