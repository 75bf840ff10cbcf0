#!/usr/bin/env bash
# Prints the frame with a title and the content of a file.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
sed -e "s/@TITLE@/$1/" -e "s/@BODY@/$(cat "$2")/" "$here/assets/frame.html"
