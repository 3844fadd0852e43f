// SPDX-License-Identifier: Apache-2.0

package gpuevent

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxTextBytes is the longest text of one log record. With its attributes the record stays below
// 64 KiB, which every store and queue takes.
const MaxTextBytes = 60 << 10

// SplitText cuts a text into pieces of at most limit bytes (at least 4), which joined give the text
// again. It cuts after the end of a line; a line that does not fit is cut between characters.
func SplitText(text string, limit int) []string {
	limit = max(limit, utf8.UTFMax)
	var pieces []string
	for len(text) > limit {
		n := strings.LastIndexByte(text[:limit], '\n') + 1
		if n == 0 {
			n = limit
			for i := n; i > limit-utf8.UTFMax; i-- {
				if utf8.RuneStart(text[i]) {
					n = i
					break
				}
			}
		}
		pieces, text = append(pieces, text[:n]), text[n:]
	}
	if text != "" {
		pieces = append(pieces, text)
	}
	return pieces
}

// graphNodeTypes are the names of CUgraphNodeType (cuda.h, CUDA 13), by number.
var graphNodeTypes = []string{
	"kernel", "memcpy", "memset", "host", "graph", "empty", "event_wait", "event_record",
	"semaphore_signal", "semaphore_wait", "malloc", "free", "batch_mem_op", "conditional",
}

// GraphNodeType returns the value of cuda.graph.node.type for a CUgraphNodeType; a number that has
// no name here stands for itself.
func GraphNodeType(n int64) string {
	if n >= 0 && n < int64(len(graphNodeTypes)) {
		return graphNodeTypes[n]
	}
	return strconv.FormatInt(n, 10)
}
