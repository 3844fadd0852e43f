// SPDX-License-Identifier: Apache-2.0

// Package audit writes who used a server and what it refused: one line of the Collector's log for
// each event. It depends on no component.
package audit

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"go.opentelemetry.io/collector/client"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/gpuflight/gpuflight/internal/apikey"
)

// perSecond bounds the lines of one event in a second, if anybody can cause it.
const perSecond = 10

// Log is an audit log. It is safe for concurrent use.
type Log struct {
	core zapcore.Core
	name string
	now  func() time.Time

	mu     sync.Mutex
	limits map[string]*limit
}

// limit counts the lines of an event in the current second.
type limit struct {
	second      int64
	n, suppress int64
}

// New returns an audit log that writes to a logger.
func New(logger *zap.Logger, now func() time.Time) *Log {
	return &Log{core: logger.Core(), name: logger.Name(), now: now, limits: map[string]*limit{}}
}

// Record writes an event that needs access, such as a deletion.
func (l *Log) Record(event string, fields ...zap.Field) { l.write(event, fields) }

// RecordLimited writes an event that anybody can cause. It suppresses lines above 10 of an event in
// a second. The next line states how many in the field suppressed. Events must be constants.
func (l *Log) RecordLimited(event string, fields ...zap.Field) {
	l.mu.Lock()
	w := l.limits[event]
	if w == nil {
		w = &limit{}
		l.limits[event] = w
	}
	if second := l.now().Unix(); w.second != second {
		w.second, w.n = second, 0
	}
	w.n++
	if w.n > perSecond {
		w.suppress++
		l.mu.Unlock()
		return
	}
	suppressed := w.suppress
	w.suppress = 0
	l.mu.Unlock()
	if suppressed > 0 {
		fields = append(fields, zap.Int64("suppressed", suppressed))
	}
	l.write(event, fields)
}

// Flush writes the numbers of suppressed lines that no later line has stated.
func (l *Log) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for event, w := range l.limits {
		if w.suppress > 0 {
			l.write(event, []zap.Field{zap.Int64("suppressed", w.suppress)})
			w.suppress = 0
		}
	}
}

// write does not ask the core whether it wants the line. The Collector's core would drop most of
// equal messages in ten seconds (service::telemetry::logs::sampling).
func (l *Log) write(event string, fields []zap.Field) {
	entry := zapcore.Entry{Level: zapcore.InfoLevel, Time: l.now(), LoggerName: l.name, Message: "audit"}
	_ = l.core.Write(entry, append([]zap.Field{zap.String("event", event)}, fields...))
}

// Client returns fields with the address and the key of the client of a context. The address may be
// "", if the context has it.
func Client(ctx context.Context, address string) []zap.Field {
	info := client.FromContext(ctx)
	if address == "" && info.Addr != nil {
		address = info.Addr.String()
	}
	if a, err := netip.ParseAddrPort(address); err == nil {
		address = a.Addr().Unmap().String()
	}
	fields := []zap.Field{zap.String("client", address)}
	if info.Auth == nil {
		return fields
	}
	for _, name := range []string{apikey.AttributeID, apikey.AttributeSubject, apikey.AttributeProject} {
		if value, ok := info.Auth.GetAttribute(name).(string); ok && value != "" {
			fields = append(fields, zap.String(name, value))
		}
	}
	return fields
}
