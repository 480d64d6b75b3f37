#!/bin/bash
# The client job with kcat, which has no program of its own: one kcat produces,
# one consumes. The contract (flags, modes, last line, exit code) is the one
# that loadtest/clients/README.md gives for every language.
set -u

bootstrap= topic= group= mode=once count=20 seconds=30
while [ $# -gt 1 ]; do
  case $1 in
    --bootstrap) bootstrap=$2 ;;
    --topic) topic=$2 ;;
    --group) group=$2 ;;
    --mode) mode=$2 ;;
    --count) count=$2 ;;
    --seconds) seconds=$2 ;;
    *) echo "FAIL unknown flag $1"; exit 1 ;;
  esac
  shift 2
done
group=${group:-$topic-$(date +%s%N)}

limit=60 # seconds: the whole program
[ "$mode" = once ] || limit=$((seconds + 90))

dir=$(mktemp -d)
finish() {
  # shellcheck disable=SC2046 # one word per job
  kill $(jobs -p) 2>/dev/null
  wait 2>/dev/null
  cat "$dir"/*.err 2>/dev/null
  rm -rf "$dir"
  echo "$*"
  [ "$1" = OK ]
  exit
}

if [ -z "$bootstrap" ] || { [ -z "$topic" ] && [ "$mode" != bootstraps ]; }; then
  finish FAIL "--bootstrap HOST:PORT and --topic NAME are required"
fi

# record N: key and value; the run's own mark keeps other runs' records apart,
# and neighbours differ in length and content, so a mix-up shows.
run=$(od -An -N6 -tx1 /dev/urandom | tr -d ' \n')
padding=$(printf 'x%.0s' {1..64})
record() { echo "$1 $run/$1/${padding:0:$(($1 % 64))}"; }

sent() { sort -u "$dir/sent"; }
got() { grep -F " $run/" "$dir/got" | sort -u; }
lost() { comm -23 <(sent) <(got); }
wrong() { comm -13 <(sent) <(got); }
# kcat names a failed send, but not which; all others were acknowledged once it has exited.
failed() { grep -c 'Delivery failed' "$dir/produce.err"; }
figures() {
  local line
  line="produced=$(($(sent | wc -l) - $(failed))) consumed=$(got | wc -l)"
  [ "$mode" != steady ] || line="$line errors=$(failed)"
  echo "$line"
}
touch "$dir/sent" "$dir/got" "$dir/produce.err"

# kcat, ended at the limit (exit 124). It takes the place of the subshell that
# it must be called in, so that whoever ends that job ends kcat.
limited() { exec timeout --foreground $((limit > SECONDS ? limit - SECONDS : 1)) kcat -b "$bootstrap" "$@"; }
produce() { limited -P -t "$topic" -K ' ' -X acks=all -X message.timeout.ms=120000 2>>"$dir/produce.err"; }
consume() {
  limited -G "$group" -u -K ' ' -X auto.offset.reset=earliest "$@" "$topic" >>"$dir/got" 2>>"$dir/consume.err"
}

create() {
  # A producer's Metadata makes the topic; the first answers name it without a leader.
  until limited -L -t "$topic" -m 10 2>"$dir/list.err" | grep -q 'leader [0-9]'; do
    [ $SECONDS -lt $limit ] || finish FAIL "create topic $topic: timeout after ${limit}s"
    sleep 0.1
  done
  echo "topic $topic: created or found by a producer's Metadata"
  sleep 0.5 # a new topic takes a moment to reach every broker
}

once() {
  create
  for ((n = 0; n < count; n++)); do record "$n"; done >"$dir/sent"
  (produce <"$dir/sent") || finish FAIL "produce: kcat exit $?"
  echo "produced $count"
  # -e: until the end of every partition
  (consume -e) || finish FAIL "consume: kcat exit $?"
  [ -z "$(lost)" ] || finish FAIL "$(lost | wc -l) acknowledged records were not consumed, $(figures)"
  [ -z "$(wrong)" ] || finish FAIL "record differs from what was sent: $(wrong | head -1)"
}

# steady produces and consumes side by side, whatever happens to the brokers,
# then checks that every acknowledged record came back.
steady() {
  create
  consume &
  local end=$((SECONDS + seconds)) n=0 status
  while [ $SECONDS -lt $end ]; do
    record "$n"
    n=$((n + 1))
    sleep 0.05
  done | tee "$dir/sent" | produce
  status=${PIPESTATUS[2]}
  [ "$status" = 0 ] || finish FAIL "produce: kcat exit $status, $(figures)"
  end=$((limit - 5))
  while [ "$(lost | wc -l)" -gt "$(failed)" ] && [ $SECONDS -lt $end ]; do
    sleep 0.2
  done
  [ -z "$(wrong)" ] || finish FAIL "record differs from what was sent: $(wrong | head -1)"
  [ "$(lost | wc -l)" -le "$(failed)" ] ||
    finish FAIL "$(lost | wc -l) of the sent records were not consumed, $(figures)"
}

# bootstraps starts a fresh client every second; the caller judges how many may fail.
bootstraps() {
  local n clients=() failed=0
  for ((n = 0; n < seconds; n++)); do
    limited -L -m 10 >/dev/null 2>>"$dir/list.err" &
    clients+=($!)
    sleep 1
  done
  for n in "${clients[@]}"; do
    wait "$n" || failed=$((failed + 1))
  done
  finish OK "started=$seconds failed=$failed"
}

case $mode in
  once) once ;;
  steady) steady ;;
  bootstraps) bootstraps ;;
  *) finish FAIL "--mode $mode: want once, steady or bootstraps" ;;
esac
finish OK "$(figures)"
