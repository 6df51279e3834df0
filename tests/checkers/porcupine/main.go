// Checks a history of Ringlog's format with porcupine, independently of Ringlog's own checker: it reads the file itself,
// pairs invokes with completions, and has its own models of a register and of the metadata log.
//
// Usage: porcupine FILE [SECONDS]; the seconds are for all keys together. Prints one JSON object: verdict (linearizable,
// not_linearizable, undecided), seconds (of checking, without reading), keys (verdict by key). The file must be
// well-formed: Ringlog's reader refuses others before. Exit status 0 with a verdict, 1 with an error.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

type line struct {
	Process json.RawMessage `json:"process"`
	Type    string          `json:"type"`
	Op      string          `json:"op"`
	Key     string          `json:"key"`
	Value   json.RawMessage `json:"value"`
}

// operation is one invoke with what became of it. Ret is the line of its completion, 0 while its outcome is unknown.
type operation struct {
	process   string
	op        string
	fate      string
	asked     json.RawMessage
	answer    json.RawMessage
	call, ret int64
}

func main() {
	if len(os.Args) < 2 {
		stop(fmt.Errorf("usage: porcupine FILE [SECONDS]"))
	}
	limit := time.Duration(0)
	if len(os.Args) > 2 {
		seconds, err := strconv.ParseFloat(os.Args[2], 64)
		if err != nil {
			stop(err)
		}
		limit = time.Duration(seconds * float64(time.Second))
	}
	data, err := os.ReadFile(os.Args[1])
	if err != nil {
		stop(err)
	}
	keys, err := read(data)
	if err != nil {
		stop(err)
	}
	begin := time.Now()
	verdicts := map[string]string{}
	whole := "linearizable"
	for key, operations := range keys {
		left := time.Duration(0)
		if limit > 0 {
			left = max(limit-time.Since(begin), time.Millisecond)
		}
		verdict := decide(operations, left)
		verdicts[key] = verdict
		if verdict == "not_linearizable" || whole == "linearizable" {
			whole = verdict
		}
	}
	shown := map[string]any{"verdict": whole, "seconds": time.Since(begin).Seconds(), "keys": verdicts}
	if err := json.NewEncoder(os.Stdout).Encode(shown); err != nil {
		stop(err)
	}
}

func stop(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// read gives the operations by key, in order of their invokes. A last line without its end that is no JSON is left out.
func read(data []byte) (map[string][]*operation, error) {
	keys := map[string][]*operation{}
	open := map[string]*operation{}
	rows := bytes.Split(data, []byte("\n"))
	for number, row := range rows {
		if len(bytes.TrimSpace(row)) == 0 {
			continue
		}
		var now line
		if err := json.Unmarshal(row, &now); err != nil {
			if number == len(rows)-1 {
				break
			}
			return nil, fmt.Errorf("line %d: %w", number+1, err)
		}
		// Text and integers that look the same are the same process.
		process := strings.Trim(text(now.Process), `"`)
		if now.Type == "invoke" {
			begun := &operation{process: process, op: now.Op, fate: "info", asked: now.Value, call: int64(number + 1)}
			open[process] = begun
			keys[now.Key] = append(keys[now.Key], begun)
			continue
		}
		ended := open[process]
		if ended == nil {
			return nil, fmt.Errorf("line %d: process %s has no operation open", number+1, process)
		}
		delete(open, process)
		ended.fate, ended.answer = now.Type, now.Value
		if now.Type != "info" {
			ended.ret = int64(number + 1)
		}
	}
	return keys, nil
}

func decide(operations []*operation, limit time.Duration) string {
	var checked porcupine.CheckResult
	switch operations[0].op {
	case "read", "write", "cas":
		checked = porcupine.CheckEventsTimeout(register, registerEvents(operations), limit)
	default:
		requests, sound := logRequests(operations)
		if !sound {
			return "not_linearizable"
		}
		checked = porcupine.CheckEventsTimeout(metadataLog, events(requests), limit)
	}
	switch checked {
	case porcupine.Ok:
		return "linearizable"
	case porcupine.Illegal:
		return "not_linearizable"
	}
	return "undecided"
}

// span is what porcupine shall place: an input and an output between two lines; ret 0: it never returns.
type span struct {
	input, output any
	call, ret     int64
}

// events are calls and returns by line; what never returned returns after everything, where it changes nothing any more.
func events(spans []span) []porcupine.Event {
	type mark struct {
		line  int64
		event porcupine.Event
	}
	const end = int64(1) << 62
	var marks []mark
	for id, one := range spans {
		ret := one.ret
		if ret == 0 {
			ret = end
		}
		call := porcupine.Event{Kind: porcupine.CallEvent, Value: one.input, Id: id}
		marks = append(marks, mark{one.call, call})
		marks = append(marks, mark{ret, porcupine.Event{Kind: porcupine.ReturnEvent, Value: one.output, Id: id}})
	}
	sort.SliceStable(marks, func(a, b int) bool { return marks[a].line < marks[b].line })
	var found []porcupine.Event
	for _, one := range marks {
		found = append(found, one.event)
	}
	return found
}

// registerInput is what was asked of a register; values are their JSON text, spelled one way.
type registerInput struct{ op, expected, value string }

// registerOutput is what came back; an unknown outcome fits every state.
type registerOutput struct {
	known bool
	value string
}

var register = porcupine.Model{
	Init: func() any { return "null" },
	Step: func(state, input, output any) (bool, any) {
		asked, told := input.(registerInput), output.(registerOutput)
		switch asked.op {
		case "read":
			return !told.known || told.value == state, state
		case "write":
			return true, asked.value
		}
		swaps := state == asked.expected
		if told.known && (told.value == "true") != swaps {
			return false, state
		}
		if swaps {
			return true, asked.value
		}
		return true, state
	},
}

func registerEvents(operations []*operation) []porcupine.Event {
	var spans []span
	for _, one := range operations {
		if one.fate == "fail" {
			continue
		}
		input := registerInput{op: one.op, value: text(one.asked)}
		if one.op == "cas" {
			var pair [2]json.RawMessage
			if err := json.Unmarshal(one.asked, &pair); err != nil {
				stop(err)
			}
			input.expected, input.value = text(pair[0]), text(pair[1])
		}
		spans = append(spans, span{input, registerOutput{one.fate == "ok", text(one.answer)}, one.call, one.ret})
	}
	return events(spans)
}

// logInput is a commit, or a look at the epoch.
type logInput struct{ commits bool }

// The state of the log is its epoch. Others commit as well, so a commit may raise it by more than one, and a look may
// find more than the last commit of the history.
var metadataLog = porcupine.Model{
	Init: func() any { return int64(0) },
	Step: func(state, input, output any) (bool, any) {
		last, epoch := state.(int64), output.(int64)
		if input.(logInput).commits {
			return epoch > last, epoch
		}
		return epoch >= last, epoch
	},
}

// request is all that was asked and answered under one request id.
type request struct {
	call, ret      int64
	epoch          int64
	known, refused bool
}

// logRequests gives commits, one for each request whose epoch is known, and looks; false where answers contradict each
// other, or the whole log.
func logRequests(operations []*operation) ([]span, bool) {
	var spans []span
	requests := map[string]*request{}
	var names []string
	var whole *operation
	for _, one := range operations {
		switch {
		case one.op == "commit":
			name := text(one.asked)
			if requests[name] == nil {
				requests[name] = &request{call: one.call}
				names = append(names, name)
			}
			if !requests[name].add(one) {
				return nil, false
			}
		case one.op == "barrier" && one.fate == "ok":
			spans = append(spans, span{logInput{false}, number(one.answer), one.call, one.ret})
		case one.op == "applied" && one.fate == "ok":
			whole = one
		}
	}
	if whole != nil {
		last, sound := settle(whole, requests)
		if !sound {
			return nil, false
		}
		spans = append(spans, span{logInput{false}, last, whole.call, whole.ret})
	}
	for _, name := range names {
		if one := requests[name]; one.known {
			spans = append(spans, span{logInput{true}, one.epoch, one.call, one.ret})
		}
	}
	return spans, true
}

// add takes one more attempt into account; false where its answer contradicts an earlier one.
func (r *request) add(one *operation) bool {
	switch one.fate {
	case "fail":
		r.refused = true
	case "ok":
		epoch := number(one.answer)
		if r.known && r.epoch != epoch {
			return false
		}
		if !r.known || one.ret < r.ret {
			r.ret = one.ret
		}
		r.known, r.epoch = true, epoch
	}
	return !(r.refused && r.known)
}

// settle holds the requests against the whole log: every known epoch is in it, nothing refused is, and what was unknown
// becomes known. It gives the log's last epoch; false where something does not fit.
func settle(whole *operation, requests map[string]*request) (int64, bool) {
	var entries [][2]json.RawMessage
	if err := json.Unmarshal(whole.answer, &entries); err != nil {
		stop(err)
	}
	last, seen := int64(0), map[string]bool{}
	for _, entry := range entries {
		name, epoch := text(entry[0]), number(entry[1])
		if seen[name] || epoch <= last {
			return 0, false
		}
		seen[name], last = true, epoch
		one := requests[name]
		if one == nil {
			continue
		}
		if one.refused || (one.known && one.epoch != epoch) {
			return 0, false
		}
		if !one.known {
			one.known, one.epoch, one.ret = true, epoch, whole.ret
		}
	}
	for name, one := range requests {
		if one.known && !seen[name] {
			return 0, false
		}
	}
	return last, true
}

// text is a JSON scalar, spelled one way: whatever escapes were used, null where nothing stands.
func text(raw json.RawMessage) string {
	if len(raw) == 0 {
		return "null"
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		stop(err)
	}
	if spelled, ok := value.(json.Number); ok {
		return strconv.FormatInt(number([]byte(spelled)), 10)
	}
	spelled, err := json.Marshal(value)
	if err != nil {
		stop(err)
	}
	return string(spelled)
}

func number(raw json.RawMessage) int64 {
	found, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		stop(err)
	}
	return found
}
