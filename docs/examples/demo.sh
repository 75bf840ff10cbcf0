#!/usr/bin/env bash
# Runs the room and the task of this folder, and a chat that makes a deck and a report, on a server and a
# scripted model of its own: no key, no network.
# Everything that it starts ends with it, and its data lies in a temporary directory. See docs/use/terminal.md.
set -euo pipefail

examples=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
jobs_of_demo=()

end() {
  for job in ${jobs_of_demo[@]+"${jobs_of_demo[@]}"}; do
    kill "$job" 2>/dev/null || true
    wait "$job" 2>/dev/null || true
  done
  rm -rf "$folder"
}
trap end EXIT
trap 'exit 130' INT TERM

# Prints the address in the first line of a log that has one; waits for it as long as the process lives.
address() {
  until sed -nE 's/^(Scripted provider|Luxx listens) on (http:.*)/\2/p' "$2" | grep .; do
    kill -0 "$1" 2>/dev/null || { cat "$2" >&2; return 1; }
    sleep 0.1
  done
}

# The server gets a directory of its own, and none of the keys, settings and proxies of this shell.
cd "$folder"
touch model.log server.log
for name in $(compgen -e | grep -E '_API_KEY$|_BASE_URL$|^LUXX_' || true); do
  unset "$name"
done

python -m luxx.providers.scripted --script "$examples/answers.yaml" > model.log 2>&1 &
jobs_of_demo+=($!)
model=$(address $! model.log)

export LUXX_ADMIN_PASSWORD="demo-$RANDOM$RANDOM$RANDOM"
LUXX_APP__PORT=0 LUXX_LOCAL__ENABLED=false LUXX_LLM__PROVIDER=openai_compatible LUXX_LLM__API_URL="$model/v1" \
  LUXX_LLM__MODEL=scripted \
  LUXX_MODELS='[{"pattern": "scripted", "context_window": 32000, "max_output": 4000, "input_price": 1.0, "output_price": 4.0}]' \
  luxx serve > server.log 2>&1 &
jobs_of_demo+=($!)
LUXX_URL=$(address $! server.log)

export LUXX_URL LUXX_PASSWORD="$LUXX_ADMIN_PASSWORD"
luxx room run "$examples/room.yaml" --username admin
echo
luxx task run "$examples/task.yaml" --username admin
echo
luxx chat "Make a deck for the visitors of the open day, and a report on the solar station." --username admin
echo
luxx artifact list --username admin
for name in "Open day of the observatory" "A solar station on the balcony"; do
  # Without the extra 'artifacts' there are no Office files and PDF.
  luxx artifact get "$name" --username admin || luxx artifact get "$name" --username admin --format md
done

# The scripted provider fails if the runs did not use all of its answers.
kill "${jobs_of_demo[0]}"
wait "${jobs_of_demo[0]}" || { cat model.log >&2; exit 1; }
