// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

func TestSystem_Has(t *testing.T) {
	text := func(key, value string) store.Attr {
		return store.Attr{Key: key, Value: store.Value{Kind: store.KindString, Str: value}}
	}
	process := func(pid int64) store.Attrs {
		return store.Attrs{
			text(semconv.HostName, "n"),
			{Key: semconv.ProcessPID, Value: store.Value{Kind: store.KindInt, Int: pid}},
			text(semconv.TelemetrySDKName, semconv.EBPFObserver),
		}
	}
	y := &system{host: "n", pid: store.Int{V: 7, OK: true}, devices: map[string]bool{"GPU-0": true}}
	for name, c := range map[string]struct {
		resource, attrs store.Attrs
		want            bool
	}{
		"of the machine":       {store.Attrs{text(semconv.HostName, "n")}, nil, true},
		"of another machine":   {store.Attrs{text(semconv.HostName, "m")}, nil, false},
		"of its device":        {nil, store.Attrs{text(semconv.HWID, "GPU-0")}, true},
		"of another device":    {nil, store.Attrs{text(semconv.HWID, "GPU-1")}, false},
		"of its process":       {process(7), nil, true},
		"of another process":   {process(8), nil, false},
		"of a process, no pid": {store.Attrs{text(semconv.TelemetrySDKName, semconv.EBPFObserver)}, nil, false},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, c.want, y.has(c.resource, c.attrs)) })
	}
	assert.False(t, (&system{}).has(process(0), nil), "a session without a process id")
}
