// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/metadata"
)

// counters updates the receiver's own telemetry from the counts of decoders. It is safe for
// concurrent use.
type counters struct {
	tel     *metadata.TelemetryBuilder
	records []metric.MeasurementOption

	mu      sync.Mutex
	rejects map[string]metric.MeasurementOption
}

func newCounters(tel *metadata.TelemetryBuilder) *counters {
	c := &counters{tel: tel, rejects: map[string]metric.MeasurementOption{}}
	for _, name := range gpuflog.RecordTypes() {
		c.records = append(c.records, metric.WithAttributeSet(attribute.NewSet(attribute.String("record.type", name))))
	}
	return c
}

// update adds the increase of a decoder's counts since old, and sets old to st.
func (c *counters) update(ctx context.Context, st gpuflog.Stats, old *gpuflog.Stats) {
	add := func(counter metric.Int64Counter, now, before uint64, opt ...metric.AddOption) {
		if now > before {
			counter.Add(ctx, int64(now-before), opt...)
		}
	}
	add(c.tel.ReceiverGpuflogRead, st.Bytes, old.Bytes)
	add(c.tel.ReceiverGpuflogLines, st.Lines, old.Lines)
	add(c.tel.ReceiverGpuflogJoinsExpired, st.JoinsExpired, old.JoinsExpired)
	add(c.tel.ReceiverGpuflogScopesMissed, st.ScopesMissed, old.ScopesMissed)
	add(c.tel.ReceiverGpuflogHeldOverflow, st.HeldOverflow, old.HeldOverflow)
	for i := range st.Records {
		add(c.tel.ReceiverGpuflogRecords, st.Records[i], old.Records[i], c.records[i])
	}
	for i := range st.Rejects {
		if n := st.Rejects[i] - old.Rejects[i]; n > 0 {
			c.reject(ctx, gpuflog.Reason(i).String(), int64(n))
		}
	}
	*old = st
}

func (c *counters) reject(ctx context.Context, reason string, n int64) {
	c.mu.Lock()
	opt, ok := c.rejects[reason]
	if !ok {
		opt = metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", reason)))
		c.rejects[reason] = opt
	}
	c.mu.Unlock()
	c.tel.ReceiverGpuflogRejects.Add(ctx, n, opt)
}
