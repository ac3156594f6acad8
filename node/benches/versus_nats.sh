#!/usr/bin/env bash
# Delivery of events to many subscribers: Holdfast against NATS JetStream, three local processes each, on the same disk in the same minutes.
#
#   node/benches/versus_nats.sh [--pairs 3] [--subscribers 100] [--rate 500] [--seconds 10] [--json]
#
# Both sides are measured in turn (A/B/A/B …), each time with a fresh cluster; medians over the pairs are printed. Messages are 256 bytes,
# stored by a quorum before they are acknowledged; all subscribers are on one server, each on a connection of its own. Ours: TLS, JSON,
# rights judged for each event, and the fsync that an acknowledgement waits for. NATS: a file stream with three replicas, a push consumer
# without acknowledgements for each subscriber, plain TCP, and the fsync of its default, which is every two minutes.
#
# The last line is JSON: cpu_us_per_delivery is what the subscribers cost the serving node on top of the same writes without them,
# cluster_cpu_us_per_delivery all that the three processes used meanwhile; ratio is events delivered by CPU second of the whole cluster,
# ours to theirs, and delivery_ratio the same of what the subscribers cost on top.
#
# Needs nats-server (Debian: apt-get install nats-server; its service need not run), cargo, awk.
set -euo pipefail
export LC_ALL=C

pairs=3 subscribers=100 rate=500 seconds=10 json=0
while [ $# -gt 0 ]; do
  case "$1" in
    --pairs) pairs=$2; shift 2 ;;
    --subscribers) subscribers=$2; shift 2 ;;
    --rate) rate=$2; shift 2 ;;
    --seconds) seconds=$2; shift 2 ;;
    --json) json=1; shift ;;
    -h | --help) sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "versus_nats.sh: unknown option $1; --help lists them" >&2; exit 64 ;;
  esac
done

die() { echo "versus_nats.sh: $*" >&2; exit 1; }
say() { [ "$json" = 1 ] || echo "$@"; }

nats=${NATS:-$(command -v nats-server || true)}
[ -n "$nats" ] || die "nats-server is missing: apt-get install nats-server (its service need not run), or name the program in NATS"
root=$(cd "$(dirname "$0")/../.." && pwd)
if [ -z "${HOLDFAST:-}" ] || [ -z "${NATS_FAN:-}" ]; then
  command -v cargo > /dev/null || die "cargo is missing, and HOLDFAST and NATS_FAN name no built programs"
  (cd "$root" && cargo build --release --bin holdfast && cargo build --release -p holdfast-node --example nats_fan) >&2
fi
holdfast=${HOLDFAST:-$root/target/release/holdfast}
fan=${NATS_FAN:-$root/target/release/examples/nats_fan}

scratch=$(mktemp -d "${TMPDIR:-/tmp}/versus-nats-XXXXXX")
export TMPDIR=$scratch
members=()
stop_nats() {
  [ ${#members[@]} -eq 0 ] || kill -9 "${members[@]}" 2> /dev/null || true
  [ ${#members[@]} -eq 0 ] || wait "${members[@]}" 2> /dev/null || true
  members=()
  rm -rf "$scratch"/nats-*
}
trap 'stop_nats; rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

# A free TCP port, found by asking for one that nobody listens on.
port() {
  local port
  while :; do
    # Below those that the kernel gives to outgoing connections.
    port=$((20000 + RANDOM % 12000))
    (exec 3<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null || { echo "$port"; return; }
  done
}

start_nats() {
  local clients=() routes=() list="" i
  for i in 0 1 2; do clients[i]=$(port); routes[i]=$(port); list+="nats-route://127.0.0.1:${routes[i]},"; done
  endpoint=127.0.0.1:${clients[1]}
  for i in 0 1 2; do
    "$nats" --jetstream --store_dir "$scratch/nats-$i" --server_name "n$i" --addr 127.0.0.1 --port "${clients[i]}" \
      --cluster_name bench --cluster "nats://127.0.0.1:${routes[i]}" --routes "${list%,}" > "$scratch/n$i.log" 2>&1 &
    members+=($!)
  done
  for i in $(seq 100); do
    (exec 3<> "/dev/tcp/127.0.0.1/${clients[1]}") 2> /dev/null && return
    sleep 0.1
  done
  die "nats-server does not get ready; see: $(tail -n 3 "$scratch/n1.log")"
}

value() { sed -n "s/.*\"$2\":\([0-9.truefals]*\).*/\1/p" <<< "$1"; }

# note SIDE LINE: keeps and shows a result.
note() {
  local side=$1 line=$2
  [ "$(value "$line" complete)" = true ] || whole=false
  echo "$side $(value "$line" cpu_us_per_delivery) $(value "$line" cluster_cpu_us_per_delivery) $(value "$line" p99_ms)" >> "$scratch/cells"
  say "$(tail -n 1 "$scratch/cells" | awk '{ printf "%-8s %6.2f us of CPU per delivered event on top, %6.2f with the writes, p99 %8.2f ms", $1, $2, $3, $4 }')"
}

: > "$scratch/cells"
whole=true
for pair in $(seq "$pairs"); do
  say "pair $pair of $pairs: $subscribers subscribers, $rate events/s"
  start_nats
  note nats "$("$fan" "$endpoint" "$(IFS=,; echo "${members[*]}")" "$subscribers" "$rate" "$seconds")"
  stop_nats
  note holdfast "$("$holdfast" --json bench events --subscribers "$subscribers" --rate "$rate" --seconds "$seconds" | tail -n 1)"
done

# median SIDE COLUMN
median() {
  awk -v s="$1" -v c="$2" '$1 == s { print $c }' "$scratch/cells" | sort -n |
    awk '{ v[NR] = $1 } END { if (NR) print (NR % 2) ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2; else print 0 }'
}
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", b ? a / b : 0 }'; }

ours=$(median holdfast 3) theirs=$(median nats 3)
printf '{"complete":%s,"cpu_us_per_delivery":%s,"p99_ms":%s,"cluster_cpu_us_per_delivery":%s,"nats":{"cpu_us_per_delivery":%s,"p99_ms":%s,"cluster_cpu_us_per_delivery":%s},"ratio":%s,"delivery_ratio":%s}\n' \
  "$whole" "$(median holdfast 2)" "$(median holdfast 4)" "$ours" "$(median nats 2)" "$(median nats 4)" "$theirs" \
  "$(ratio "$theirs" "$ours")" "$(ratio "$(median nats 2)" "$(median holdfast 2)")"
