// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/collector/client"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpuflight/gpuflight/internal/apikey"
)

func TestLog_Limits(t *testing.T) {
	core, lines := observer.New(zapcore.ErrorLevel) // the level of the log does not hide audit lines
	now := time.Unix(1, 0)
	// The Collector samples in this way.
	l := New(zap.New(zapcore.NewSamplerWithOptions(core, time.Minute, 1, 100)), func() time.Time { return now })
	for range 100 {
		l.RecordLimited("refused")
		l.Record("delete")
	}
	l.RecordLimited("login")
	count := func(event string) (n int) {
		for _, line := range lines.All() {
			if line.ContextMap()["event"] == event {
				n++
			}
		}
		return n
	}
	assert.Equal(t, perSecond, count("refused"))
	assert.Equal(t, 1, count("login"))
	assert.Equal(t, 100, count("delete"))
	now = now.Add(time.Second)
	l.RecordLimited("refused", zap.String("reason", "host"))
	last := lines.All()[lines.Len()-1]
	assert.Equal(t, map[string]any{"event": "refused", "reason": "host", "suppressed": int64(90)}, last.ContextMap())
	assert.Equal(t, "audit", last.Message)
	for range perSecond + 4 {
		l.RecordLimited("refused")
	}
	l.Flush()
	last = lines.All()[lines.Len()-1]
	assert.Equal(t, map[string]any{"event": "refused", "suppressed": int64(5)}, last.ContextMap())
	n := lines.Len()
	l.Flush()
	assert.Equal(t, n, lines.Len())
}

type auth map[string]any

func (a auth) GetAttribute(name string) any { return a[name] }
func (auth) GetAttributeNames() []string    { return nil }

func TestClient(t *testing.T) {
	ctx := client.NewContext(context.Background(), client.Info{
		Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 4000},
		Auth: auth{apikey.AttributeID: "abcdefgh", apikey.AttributeSubject: "ci", apikey.AttributeProject: "", "raw": "secret"},
	})
	assert.Equal(t, []zap.Field{zap.String("client", "10.0.0.1"), zap.String("key", "abcdefgh"), zap.String("subject", "ci")}, Client(ctx, ""))
	assert.Equal(t, []zap.Field{zap.String("client", "::1")}, Client(context.Background(), "[::1]:5"))
}
