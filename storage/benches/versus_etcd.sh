#!/usr/bin/env bash
# Committed 256-byte writes a second: Holdfast against etcd, three local processes each, fsync on, on the same disk in the same minutes.
#
#   storage/benches/versus_etcd.sh [--pairs 5] [--seconds 4] [--clients "1 64 256 1000"] [--json]
#
# Both sides are measured in turn (A/B/A/B …), each time with a fresh cluster; medians over the pairs are printed, and the ratio of the
# medians. The last line is JSON. Ours: separate client processes over the client lane, through authentication, deduplication, decide,
# events and state hash. etcd: eight persistent HTTP/2 connections to its leader from a compiled client. A run is void when that client
# used 15 % of the CPU of the run or more, or when the machine was more than 30 % idle in etcd's 256-client cell.
#
# Needs etcd (Debian: apt-get install etcd-server), cargo, awk. TMPDIR says which disk is measured; a memory file system is refused.
set -euo pipefail
export LC_ALL=C

pairs=5 seconds=4 cells="1 64 256 1000" json=0
while [ $# -gt 0 ]; do
  case "$1" in
    --pairs) pairs=$2; shift 2 ;;
    --seconds) seconds=$2; shift 2 ;;
    --clients) cells=$2; shift 2 ;;
    --json) json=1; shift ;;
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "versus_etcd.sh: unknown option $1; --help lists them" >&2; exit 64 ;;
  esac
done

die() { echo "versus_etcd.sh: $*" >&2; exit 1; }
say() { [ "$json" = 1 ] || echo "$@"; }

etcd=${ETCD:-$(command -v etcd || true)}
[ -n "$etcd" ] || die "etcd is missing: apt-get install etcd-server (its service need not run), or name the program in ETCD"
root=$(cd "$(dirname "$0")/../.." && pwd)
if [ -z "${HOLDFAST:-}" ] || [ -z "${ETCD_LOAD:-}" ]; then
  command -v cargo > /dev/null || die "cargo is missing, and HOLDFAST and ETCD_LOAD name no built programs"
  (cd "$root" && cargo build --release -p holdfast-node --bin holdfast && cargo build --release -p holdfast-storage --example etcd_load) >&2
fi
holdfast=${HOLDFAST:-$root/target/release/holdfast}
load=${ETCD_LOAD:-$root/target/release/examples/etcd_load}

scratch=$(mktemp -d "${TMPDIR:-/tmp}/versus-etcd-XXXXXX")
case $(stat -f -c %T "$scratch") in
  tmpfs | ramfs) rmdir "$scratch"; die "${TMPDIR:-/tmp} is in memory, where fsync costs nothing: set TMPDIR to a folder on a disk" ;;
esac
export TMPDIR=$scratch
members=()
stop_etcd() {
  [ ${#members[@]} -eq 0 ] || kill -9 "${members[@]}" 2> /dev/null || true
  [ ${#members[@]} -eq 0 ] || wait "${members[@]}" 2> /dev/null || true
  members=()
  rm -rf "$scratch"/etcd-*
}
trap 'stop_etcd; rm -rf "$scratch"' EXIT
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

# start_etcd [FLAG…]: three members; sets endpoints.
start_etcd() {
  local name cluster="" clients=() peers=() i
  for i in 0 1 2; do clients[i]=$(port); peers[i]=$(port); cluster+="m$i=http://127.0.0.1:${peers[i]},"; done
  endpoints="127.0.0.1:${clients[0]},127.0.0.1:${clients[1]},127.0.0.1:${clients[2]}"
  for i in 0 1 2; do
    name=m$i
    ETCD_UNSUPPORTED_ARCH=$(uname -m) "$etcd" --name "$name" --data-dir "$scratch/etcd-$name" "$@" \
      --listen-client-urls "http://127.0.0.1:${clients[i]}" --advertise-client-urls "http://127.0.0.1:${clients[i]}" \
      --listen-peer-urls "http://127.0.0.1:${peers[i]}" --initial-advertise-peer-urls "http://127.0.0.1:${peers[i]}" \
      --initial-cluster "${cluster%,}" --initial-cluster-state new --logger zap --log-level error \
      > "$scratch/$name.log" 2>&1 &
    members+=($!)
  done
}

# Hundredths of a second that processes have used.
ticks() { cat "${@/%//stat}" 2> /dev/null | sed 's/.*) //' | awk '{ sum += $12 + $13 } END { print sum + 0 }'; }
# Total and idle hundredths of a second of the machine.
machine() { awk '/^cpu / { idle = $5 + $6; for (i = 2; i <= NF; i++) all += $i; print all, idle }' /proc/stat; }
value() { sed -n "s/.*\"$2\":\([0-9.]*\).*/\1/p" <<< "$1"; }

# run_etcd SIDE CLIENTS [FLAG…]: one cell.
run_etcd() {
  local side=$1 clients=$2 tries=0 before after all idle all2 idle2 out used share
  shift 2
  start_etcd "$@"
  # A member that is not ready yet may take a connection and say nothing.
  until timeout 6 "$load" "$endpoints" 1 1 > /dev/null 2>&1; do
    tries=$((tries + 1)); [ $tries -lt 30 ] || die "etcd does not get ready; see: $(tail -n 3 "$scratch/m0.log")"
    sleep 0.5
  done
  before=$(ticks "${members[@]/#//proc/}"); read -r all idle <<< "$(machine)"
  out=$("$load" "$endpoints" "$clients" "$seconds")
  after=$(ticks "${members[@]/#//proc/}"); read -r all2 idle2 <<< "$(machine)"
  stop_etcd
  used=$(((after - before) * 10000))
  share=$(awk -v c="$(value "$out" client_cpu_us)" -v u="$used" 'BEGIN { print (c + u) ? c / (c + u) : 0 }')
  awk -v s="$side" -v n="$clients" -v w="$(value "$out" writes_per_s)" -v p="$(value "$out" p99_ms)" -v q="$(value "$out" p50_ms)" \
    -v u="$used" -v k="$(value "$out" writes)" -v h="$share" -v i="$(((idle2 - idle) * 1000 / (all2 - all)))" \
    'BEGIN { print s, n, w, p, q, (k ? u / k : 0), 0, h, i / 1000 }' >> "$scratch/cells"
  say "$(tail -n 1 "$scratch/cells" | awk '{ printf "%-8s %5d clients %7d writes/s  p50 %7.2f ms  p99 %7.2f ms  %6.1f us CPU/write  client %4.1f %%  idle %4.1f %%", $1, $2, $3, $5, $4, $6, $8 * 100, $9 * 100 }')"
}

# run_ours CLIENTS: one cell.
run_ours() {
  local out all idle all2 idle2
  read -r all idle <<< "$(machine)"
  out=$("$holdfast" --json bench log --clients "$1" --seconds "$seconds" | tail -n 1)
  read -r all2 idle2 <<< "$(machine)"
  awk -v n="$1" -v w="$(value "$out" writes_per_s)" -v p="$(value "$out" p99_ms)" -v q="$(value "$out" p50_ms)" \
    -v u="$(value "$out" cpu_us_per_write)" -v e="$(value "$out" entries_per_fsync)" -v i="$(((idle2 - idle) * 1000 / (all2 - all)))" \
    'BEGIN { print "holdfast", n, w, p, q, u, e, 0, i / 1000 }' >> "$scratch/cells"
  say "$(tail -n 1 "$scratch/cells" | awk '{ printf "%-8s %5d clients %7d writes/s  p50 %7.2f ms  p99 %7.2f ms  %6.1f us CPU/write  %5.1f entries/fsync", $1, $2, $3, $5, $4, $6, $7 }')"
}

: > "$scratch/cells"
for pair in $(seq "$pairs"); do
  say "pair $pair of $pairs"
  for clients in $cells; do
    run_etcd etcd "$clients"
    run_ours "$clients"
  done
  # With its fsync switched off, against ours with fsync on.
  case " $cells " in *" 256 "*) run_etcd nofsync 256 --unsafe-no-fsync ;; esac
done

# median SIDE CLIENTS COLUMN
median() {
  awk -v s="$1" -v n="$2" -v c="$3" '$1 == s && $2 == n { print $c }' "$scratch/cells" | sort -n |
    awk '{ v[NR] = $1 } END { if (NR) print (NR % 2) ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2; else print 0 }'
}
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", b ? a / b : 0 }'; }

void=""
ratios="" per_fsync=""
say
say "clients  holdfast/s     etcd/s   ratio   p99 holdfast / etcd (ms)   CPU us/write holdfast / etcd   entries/fsync"
for clients in $cells; do
  ours=$(median holdfast "$clients" 3) theirs=$(median etcd "$clients" 3)
  ratios+="\"$clients\":$(ratio "$ours" "$theirs"),"
  case $clients in 256 | 1000) per_fsync+="\"$clients\":$(median holdfast "$clients" 7)," ;; esac
  say "$(printf '%7d %11.0f %10.0f %7s %12.2f / %-12.2f %14.1f / %-12.1f %12.1f' "$clients" "$ours" "$theirs" "$(ratio "$ours" "$theirs")" \
    "$(median holdfast "$clients" 4)" "$(median etcd "$clients" 4)" "$(median holdfast "$clients" 6)" "$(median etcd "$clients" 6)" "$(median holdfast "$clients" 7)")"
done
if awk '$1 == "etcd" && $8 >= 0.15 { bad = 1 } END { exit !bad }' "$scratch/cells"; then
  void="etcd's load generator used 15 % of the run's CPU or more"
fi
if awk -v i="$(median etcd 256 9)" 'BEGIN { exit !(i > 0.30) }'; then
  void="the machine was more than 30 % idle in etcd's 256-client cell"
fi
[ -z "$void" ] || echo "versus_etcd.sh: this run is void: $void" >&2

printf '{"ratio":{%s},"p99_ratio_256":%s,"cpu_us_per_write_1000":%s,"ratio_no_fsync_256":%s,"entries_per_fsync":{%s}%s}\n' \
  "${ratios%,}" "$(ratio "$(median holdfast 256 4)" "$(median etcd 256 4)")" "$(median holdfast 1000 6)" \
  "$(ratio "$(median holdfast 256 3)" "$(median nofsync 256 3)")" "${per_fsync%,}" "${void:+,\"void\":\"$void\"}"
[ -z "$void" ] || exit 3
