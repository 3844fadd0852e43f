// SPDX-License-Identifier: Apache-2.0

package fileset

import (
	"strconv"
	"strings"
)

// Channel is one of the four kinds of file of a session.
type Channel uint8

// The channels, in the order in which Group.Streams gives them. Generations before C2 have no sass files.
const (
	Device Channel = iota
	Scope
	System
	Sass

	// NumChannels is how many channels there are.
	NumChannels = 4
)

var channelNames = [NumChannels]string{"device", "scope", "system", "sass"}

// String gives the channel's name as it stands in file names.
func (c Channel) String() string {
	if int(c) < len(channelNames) {
		return channelNames[c]
	}
	return "channel(" + strconv.Itoa(int(c)) + ")"
}

func parseChannel(s string) (Channel, bool) {
	for i, n := range channelNames {
		if s == n {
			return Channel(i), true
		}
	}
	return 0, false
}

// fileName is what a data file's name tells.
type fileName struct {
	base     string // empty for a file of a session folder
	channel  Channel
	index    uint64
	numbered bool
	gz       bool
}

// maxIndex bounds the numbers in names: nine digits, which no rotation reaches.
const maxIndex = 999_999_999

// parseName takes a base name apart; ok is false for everything that is not a data file (sidecars, markers, .part).
func parseName(name string) (fn fileName, ok bool) {
	rest, gz := strings.CutSuffix(name, ".gz")
	fn.gz = gz
	rest, ok = strings.CutSuffix(rest, ".log")
	if !ok {
		return fileName{}, false
	}
	base, last := cutLast(rest)
	if n, isNum := parseIndex(last); isNum {
		fn.index, fn.numbered = n, true
		base, last = cutLast(base)
	}
	fn.channel, ok = parseChannel(last)
	if !ok {
		// A0 called the device channel "kernel", only in flat numbered files (log format, section 2).
		if last != "kernel" || !fn.numbered || gz || base == "" {
			return fileName{}, false
		}
		fn.channel = Device
	}
	fn.base = base
	if base == "" && rest[0] == '.' {
		return fileName{}, false // ".device.log" has an empty base: neither layout
	}
	return fn, true
}

func cutLast(s string) (before, last string) {
	i := strings.LastIndexByte(s, '.')
	if i < 0 {
		return "", s
	}
	return s[:i], s[i+1:]
}

// parseIndex accepts canonical decimals only: "01" would be another file than "1" with the same number.
func parseIndex(s string) (uint64, bool) {
	if s == "" || len(s) > 9 || (len(s) > 1 && s[0] == '0') {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || s[0] == '+' {
		return 0, false
	}
	return n, true
}

// controlKind tells the recorder's own hidden files apart that matter here.
type controlKind uint8

const (
	controlNone    controlKind = iota
	controlLock                // .gpufl-session.lock
	controlSidecar             // .gpufl-window.<ch>.<N>.json
	controlLoss                // .gpufl-transport-loss.[agent-]<ch>.<N>.json
	controlOther               // any other .gpufl-*: proof of a C3 session folder and nothing more
)

const lockName = ".gpufl-session.lock"

func parseControl(name string) (kind controlKind, ch Channel, n uint64) {
	if name == lockName {
		return controlLock, 0, 0
	}
	if !strings.HasPrefix(name, ".gpufl-") {
		return controlNone, 0, 0
	}
	kind = controlSidecar
	rest, ok := strings.CutPrefix(name, ".gpufl-window.")
	if !ok {
		kind = controlLoss
		if rest, ok = strings.CutPrefix(name, ".gpufl-transport-loss."); !ok {
			return controlOther, 0, 0
		}
		rest = strings.TrimPrefix(rest, "agent-")
	}
	if rest, ok = strings.CutSuffix(rest, ".json"); !ok {
		return controlOther, 0, 0
	}
	chName, num, _ := strings.Cut(rest, ".")
	ch, okCh := parseChannel(chName)
	n, okN := parseIndex(num)
	if !okCh || !okN || n == 0 {
		return controlOther, 0, 0
	}
	return kind, ch, n
}
