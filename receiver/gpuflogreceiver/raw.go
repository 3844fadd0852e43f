// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/fileset"
	"github.com/gpuflight/gpuflight/semconv"
)

// rawChunkBytes is the amount of a channel that is sent at a time. An archive has an object for it.
const rawChunkBytes = 8 << 20

// rawReader sends the lines of files as log records. It reads at each poll interval, and not earlier,
// so that an archive has few objects. Each channel of a session has a resource with the
// path of a file for its lines, and its records are in the order of the lines. After a crash, the last
// chunk of a channel can come again.
type rawReader struct {
	*reader
	// muted has the groups whose data is older than the first start, with start_at: end.
	muted map[string]bool
	// unsaved has the groups whose progress is not stored yet.
	unsaved map[string]*fileset.Group
	// ended has the channels that did not change since their unterminated end was read.
	ended map[*fileset.Stream]bool
}

func (r *rawReader) run(ctx context.Context, stop <-chan struct{}) {
	r.muted, r.unsaved, r.ended = map[string]bool{}, map[string]*fileset.Group{}, map[*fileset.Stream]bool{}
	if err := r.store.open(ctx); err != nil {
		r.logger.Error("list of checkpoints is invalid; starting with an empty one", zap.Error(err))
		r.reject(ctx, "checkpoint", 1)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		progress, ok := r.pass(ctx, stop)
		if !ok || stopped(stop) {
			return
		}
		if progress {
			continue
		}
		timer.Reset(r.cfg.PollInterval)
		select {
		case <-timer.C:
		case <-stop:
			return
		}
	}
}

// pass reads a chunk of each channel. It reports whether it read anything. ok is false if a delivery
// was interrupted.
func (r *rawReader) pass(ctx context.Context, stop <-chan struct{}) (progress, ok bool) {
	now := r.now()
	r.scan(ctx, now)
	for _, g := range r.removed {
		if err := r.store.drop(ctx, g.Key(), 0, 0); err != nil {
			r.rawStoreFailed(ctx, g, err)
		}
		delete(r.unsaved, g.Key())
		delete(r.muted, g.Key())
		for _, s := range g.Streams() {
			delete(r.ended, s)
		}
	}
	for _, g := range r.added {
		r.add(ctx, g)
	}
	r.added, r.removed, r.started = nil, nil, true
	for _, g := range r.files.Groups() {
		quiet := now.Sub(g.LastChange()) >= tailWait
		atEnd := true
		for ch, s := range g.Streams() {
			if !s.Changed() && (!quiet || r.ended[s]) {
				continue
			}
			chunk, buf, err := s.Next(r.buf)
			r.buf = buf
			for _, p := range chunk.Problems {
				r.fileProblem(ctx, p)
			}
			if err != nil {
				r.warn(g.Key()+" "+s.Channel().String(), "read", zap.Error(err))
			}
			if len(chunk.Data) == 0 && chunk.AtEnd && quiet {
				chunk = r.tail(ctx, s)
				r.ended[s] = true
			}
			atEnd = atEnd && chunk.AtEnd
			if len(chunk.Data) == 0 {
				continue
			}
			progress, r.ended[s] = true, false
			if !r.muted[g.Key()] && !r.send(ctx, stop, g, gpuflog.Channel(ch), chunk.Data) {
				delete(r.unsaved, g.Key()) // its files are ahead of the accepted data
				r.save(ctx)
				return progress, false
			}
			r.unsaved[g.Key()] = g
		}
		if atEnd {
			delete(r.muted, g.Key())
		}
	}
	r.save(ctx)
	return progress, true
}

// save stores the progress of groups whose data was accepted.
func (r *rawReader) save(ctx context.Context) {
	for _, key := range slices.Collect(maps.Keys(r.unsaved)) {
		g := r.unsaved[key]
		if err := r.store.saveSnapshot(ctx, key, 0, &saved{files: g.AppendState(nil), muted: r.muted[key]}); err != nil {
			r.rawStoreFailed(ctx, g, err)
			continue
		}
		delete(r.unsaved, key)
	}
}

// add starts to follow a group, from its checkpoint if there is one.
func (r *rawReader) add(ctx context.Context, g *fileset.Group) {
	s, err := r.store.load(ctx, g.Key())
	if err == nil && s != nil {
		err = g.LoadState(s.files)
		r.muted[g.Key()] = s.muted
	}
	if err != nil {
		r.logger.Error("checkpoint cannot be used; reading from the beginning", zap.String("group", g.Key()), zap.Error(err))
		r.reject(ctx, "checkpoint", 1)
	}
	r.logger.Info("following", zap.String("group", g.Key()), zap.Stringer("layout", g.Layout()), zap.Bool("resumed", s != nil))
	if s == nil {
		r.muted[g.Key()] = r.cfg.StartAt == startAtEnd && !r.started
	}
}

// send delivers lines and returns when they are accepted or permanently rejected.
func (r *rawReader) send(ctx context.Context, stop <-chan struct{}, g *fileset.Group, ch gpuflog.Channel, data []byte) bool {
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	rl.Resource().Attributes().PutStr(semconv.LogFilePath, g.Whole(ch))
	records := rl.ScopeLogs().AppendEmpty().LogRecords()
	records.EnsureCapacity(bytes.Count(data, []byte("\n")) + 1)
	at := pcommon.NewTimestampFromTime(r.now())
	for line := range bytes.Lines(data) {
		record := records.AppendEmpty()
		record.SetObservedTimestamp(at)
		record.Body().SetStr(string(bytes.TrimSuffix(line, []byte("\n"))))
	}
	p := &pendingBatch{logs: queue{signal: "logs"}}
	p.addLogs(ld)
	err := r.out.push(ctx, p)
	if err == nil {
		return true
	}
	return ctx.Err() == nil && !stopped(stop) && r.out.retry(ctx, stop, p, err)
}

func (r *rawReader) rawStoreFailed(ctx context.Context, g *fileset.Group, err error) {
	r.tel.ReceiverGpuflogCheckpointErrors.Add(ctx, 1)
	r.warn(g.Key(), "checkpoint", zap.Error(err))
}
