// SPDX-License-Identifier: Apache-2.0

package gpufl

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
)

const (
	// maxFrames bounds the frames of a stack, innermost first.
	maxFrames = 32
	// maxStacks bounds the different stacks of a process. Later ones are unknown.
	maxStacks = 4096
)

// stacks makes a text of each host stack once. Its methods are safe for concurrent use. nil has no
// stacks.
type stacks struct {
	mu    sync.RWMutex
	texts map[[maxFrames]uintptr]string
}

// of returns the stack of the caller of the function that calls it: a frame in each line, innermost
// first, as "function (file:line)".
func (s *stacks) of() string {
	if s == nil {
		return ""
	}
	var pcs [maxFrames]uintptr
	n := runtime.Callers(3, pcs[:]) // without Callers, of, and the caller
	s.mu.RLock()
	text, ok := s.texts[pcs]
	s.mu.RUnlock()
	if ok {
		return text
	}
	text = format(pcs[:n])
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.texts) >= maxStacks {
		return ""
	}
	if s.texts == nil {
		s.texts = map[[maxFrames]uintptr]string{}
	}
	s.texts[pcs] = text
	return text
}

func format(pcs []uintptr) string {
	var b strings.Builder
	frames := runtime.CallersFrames(pcs)
	for {
		f, more := frames.Next()
		if f.Function != "" && f.Function != "runtime.goexit" {
			if b.Len() > 0 {
				b.WriteByte('\n')
			}
			fmt.Fprintf(&b, "%s (%s:%d)", f.Function, f.File, f.Line)
		}
		if !more {
			return b.String()
		}
	}
}
