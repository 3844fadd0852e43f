// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
)

// Why an object was not read.
const (
	SkippedDone     = "sent_before"  // the journal says that it was sent
	SkippedTime     = "other_time"   // its name has a time outside of the one asked for
	SkippedTimeless = "without_time" // a time was asked for and its name has none
	SkippedOther    = "other_name"   // its name is neither that of OTLP nor that of a log
)

// DefaultBatchItems is how many items are put together into a batch, as the Collector's batch processor
// does by default.
const DefaultBatchItems = 8192

// batchBytes bounds a batch beside its items, in bytes of the archive.
const batchBytes = 8 << 20

// Sender takes telemetry and says when it is sent. [otlp.Sender] is one.
type Sender interface {
	// Takes reports whether a signal is wanted; items of others are left out and counted.
	Takes(otlp.Signal) bool
	Traces(context.Context, ptrace.Traces) (otlp.Answer, error)
	Logs(context.Context, plog.Logs) (otlp.Answer, error)
	Metrics(context.Context, pmetric.Metrics) (otlp.Answer, error)
}

// Options say what to replay. Zero values take the defaults named here.
type Options struct {
	// Sources are read one after the other.
	Sources []Source
	// Sender takes what is read. Without one everything is read and counted, and nothing sent.
	Sender Sender
	// Journal, if there is one, remembers what was sent. It is not for a replay that sends nothing.
	Journal *Journal
	// From and To bound the times in the objects' names, which are in Zone (default: UTC); To is not
	// included. Zero is without a bound.
	From, To time.Time
	Zone     *time.Location
	// BatchItems is how many spans, log records or data points are put together, messages being kept
	// whole. Default [DefaultBatchItems].
	BatchItems int
	// MaxMessageBytes and MaxObjectBytes bound what is read, after decompression. Defaults
	// [DefaultMaxMessage], [DefaultMaxObject].
	MaxMessageBytes int
	MaxObjectBytes  int64
	// SkipRefused goes on after a batch that the endpoint refuses. Without it the replay ends there,
	// since most of the time that says something about the endpoint and not about the batch.
	SkipRefused bool
	// Exclude is the name of a file that is no part of the archive although it may lie in it.
	Exclude string
	// Problem, if set, is told of each problem, Progress of the counts after each batch and object.
	Problem  func(Problem)
	Progress func(Counts)
}

// Problem is one thing that was not sent again.
type Problem struct {
	// Object is its full name, Offset where in it, in bytes after decompression, the message or line
	// begins.
	Object string
	Offset int64
	// Reason is one of the constants, Detail says more in a few words.
	Reason, Detail string
}

// Counts say what a replay did. They are of this run: what an earlier one sent is not in them.
type Counts struct {
	// Objects were read to their end, BytesRead of them as they lie in the archive. A group of logs
	// counts as many as it has files.
	Objects   int
	BytesRead int64
	// Skipped are objects that were not read, by reason.
	Skipped map[string]int
	// Batches were sent, with so many spans, log records and data points.
	Batches                       int
	Spans, LogRecords, DataPoints int
	// Rejected counts messages, lines and objects by reason, RefusedItems the spans, log records and
	// data points that the endpoint did not want.
	Rejected     map[string]int
	RefusedItems int
	// LeftOut are items of signals that the Sender does not take.
	LeftOut int
}

// Items is the number of spans, log records and data points that were sent.
func (c *Counts) Items() int { return c.Spans + c.LogRecords + c.DataPoints }

// Lost is the number of things that the archive has and that were not sent, in whatever unit each was
// counted.
func (c *Counts) Lost() int {
	n := 0
	for reason, count := range c.Rejected {
		if reason != ReasonLogNote && reason != ReasonChanged {
			n += count
		}
	}
	return n
}

// Run replays. An error ended it before its time: the context's, one of the sender, of the journal or
// of listing objects; the counts are of what was done until then.
func Run(ctx context.Context, opt Options) (Counts, error) {
	opt.BatchItems = cmp.Or(max(opt.BatchItems, 0), DefaultBatchItems)
	opt.MaxMessageBytes = cmp.Or(max(opt.MaxMessageBytes, 0), DefaultMaxMessage)
	opt.MaxObjectBytes = cmp.Or(max(opt.MaxObjectBytes, 0), int64(DefaultMaxObject))
	if opt.Zone == nil {
		opt.Zone = time.UTC
	}
	r := &replay{
		opt: opt, ctx: ctx, now: time.Now(), named: map[string]bool{},
		counts: Counts{Skipped: map[string]int{}, Rejected: map[string]int{}},
	}
	if opt.Journal != nil {
		r.now = opt.Journal.Started()
	}
	for _, s := range opt.Sources {
		if err := r.source(s); err != nil {
			return r.counts, err
		}
	}
	return r.counts, nil
}

// replay is one run.
type replay struct {
	opt    Options
	ctx    context.Context
	now    time.Time
	counts Counts
	// named are the groups of logs that the user named a file of.
	named map[string]bool

	unit unit
}

// unit is what the journal has one position for: an object, or a group of logs.
type unit struct {
	name, version string
	// batch is what waits to be sent, from messages of the unit up to number upTo.
	batch message
	items int
	upTo  int
	// noted is the position that the journal has.
	noted int
	// fatal is why the whole replay ends.
	fatal error
}

func (r *replay) source(s Source) error {
	groups := map[gpuflog.FileGroup][]logFile{}
	err := s.Objects(r.ctx, func(o Object) error {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		// What lies below a folder comes in one stretch: behind that, its logs are complete.
		if err := r.groups(s, groups, o.Name); err != nil {
			return err
		}
		if o.Name == r.opt.Exclude {
			return nil
		}
		f, isLog := asLog(o)
		if reason := r.skip(o, isLog); reason != "" {
			r.counts.Skipped[reason]++
			r.progress()
			return nil
		}
		if isLog {
			groups[f.Group] = append(groups[f.Group], f)
			return nil
		}
		return r.object(s, o)
	})
	if err != nil {
		return err
	}
	return r.groups(s, groups, "")
}

// skip says why an object is not read, "" if it is.
func (r *replay) skip(o Object, isLog bool) string {
	if !isLog && !o.Named && (kindOf(o.Name) == unknownKind || strings.HasPrefix(path.Base(slashed(o.Name)), ".")) {
		return SkippedOther
	}
	if r.opt.From.IsZero() && r.opt.To.IsZero() {
		return ""
	}
	from, to, ok := partition(slashed(o.Name), r.opt.Zone)
	switch {
	case !ok:
		return SkippedTimeless
	case !r.opt.To.IsZero() && !from.Before(r.opt.To), !r.opt.From.IsZero() && !to.After(r.opt.From):
		return SkippedTime
	}
	return ""
}

func slashed(name string) string { return strings.ReplaceAll(name, `\`, "/") }

// groups reads the groups of logs whose folder does not hold the object of a name, in order.
func (r *replay) groups(s Source, groups map[gpuflog.FileGroup][]logFile, name string) error {
	if len(groups) == 0 {
		return nil
	}
	var complete []gpuflog.FileGroup
	for g := range groups {
		if name == "" || !strings.HasPrefix(slashed(name), g.Dir+"/") {
			complete = append(complete, g)
		}
	}
	slices.SortFunc(complete, func(a, b gpuflog.FileGroup) int {
		return cmp.Or(cmp.Compare(a.Dir, b.Dir), cmp.Compare(a.Base, b.Base))
	})
	for _, g := range complete {
		if err := r.logs(s, g, groups[g]); err != nil {
			return err
		}
		delete(groups, g)
	}
	return nil
}

// begin starts a unit; false if it was sent before.
func (r *replay) begin(name, version string, objects int) (skip int, ok bool) {
	r.unit = unit{name: name, version: version}
	if r.opt.Journal == nil {
		return 0, true
	}
	skip, done, changed := r.opt.Journal.position(name, version)
	if done {
		r.counts.Skipped[SkippedDone] += objects
		r.progress()
		return 0, false
	}
	if changed {
		r.note(name, 0, rejectf(ReasonChanged, "is not as it was when it was begun: all of it is sent"))
	}
	r.unit.upTo, r.unit.noted = skip, skip
	return skip, true
}

func (r *replay) object(s Source, o Object) error {
	skip, ok := r.begin(o.Name, o.Version, 1)
	if !ok {
		return nil
	}
	in, err := s.Open(r.ctx, o)
	if err != nil {
		return r.end(1, err)
	}
	defer in.Close()
	d := &reader{
		name: o.Name, limits: limits{r.opt.MaxMessageBytes, r.opt.MaxObjectBytes}, skip: skip, message: r.message,
		reject: func(n int, offset int64, err *rejectError) {
			r.note(o.Name, offset, err)
			r.unit.upTo = max(r.unit.upTo, n)
		},
	}
	return r.end(1, d.read(&counter{in, r.ctx, r.read}))
}

func (r *replay) logs(s Source, g gpuflog.FileGroup, files []logFile) error {
	if slices.ContainsFunc(files, func(f logFile) bool { return f.object.Named }) {
		if r.named[groupName(g)] {
			return nil
		}
		r.named[groupName(g)] = true
	}
	// In the order of their names, which is not that of listing where .tmp is in between.
	slices.SortFunc(files, func(a, b logFile) int { return cmp.Compare(a.object.Name, b.object.Name) })
	hash := sha256.New()
	for _, f := range files {
		fmt.Fprintf(hash, "%q %q\n", f.object.Name, f.object.Version)
	}
	skip, ok := r.begin(groupName(g), hex.EncodeToString(hash.Sum(nil)[:16]), len(files))
	if !ok {
		return nil
	}
	d := &logReader{
		source: s, limits: limits{r.opt.MaxMessageBytes, r.opt.MaxObjectBytes}, now: r.now.UnixNano(), skip: skip,
		message: r.message, reject: r.note, bytes: r.read,
	}
	return r.end(len(files), d.read(r.ctx, files))
}

// end sends what is left of a unit and writes down that it is complete, unless it could not be read.
// The error is one that ends the replay.
func (r *replay) end(objects int, err error) error {
	switch {
	case r.unit.fatal != nil:
		return r.unit.fatal
	case r.ctx.Err() != nil:
		return r.ctx.Err()
	case err != nil:
		r.note(r.unit.name, 0, &rejectError{ReasonUnreadable, err})
		return r.flush(false)
	}
	if err := r.flush(true); err != nil {
		return err
	}
	r.counts.Objects += objects
	r.progress()
	return nil
}

// message takes a message of the unit into the batch.
func (r *replay) message(n int, m message) error {
	items := m.items()
	u := &r.unit
	switch {
	case items == 0:
	case r.opt.Sender != nil && !r.opt.Sender.Takes(m.signal):
		r.counts.LeftOut += items
	default:
		if u.items > 0 && (u.batch.signal != m.signal || u.items+items > r.opt.BatchItems || u.batch.bytes+m.bytes > batchBytes) {
			if err := r.flush(false); err != nil {
				u.fatal = err
				return err
			}
		}
		if u.items == 0 {
			u.batch = m
		} else {
			u.batch.merge(m)
		}
		u.items += items
	}
	u.upTo = n
	return nil
}

// flush sends the batch, and writes down that it was sent.
func (r *replay) flush(done bool) error {
	u := &r.unit
	if u.items > 0 {
		if err := r.send(); err != nil {
			return err
		}
		u.batch, u.items = message{}, 0
	}
	if r.opt.Journal == nil || !done && u.upTo == u.noted {
		return nil
	}
	e := entry{Object: u.name, Version: u.version, Messages: u.upTo, Done: done}
	if done {
		e.Messages = 0
	}
	if err := r.opt.Journal.note(e); err != nil {
		return fmt.Errorf("the state: %w", err)
	}
	u.noted = u.upTo
	return nil
}

func (r *replay) send() error {
	u := &r.unit
	answer := otlp.Answer{Sent: u.items}
	var err error
	if to := r.opt.Sender; to != nil {
		switch u.batch.signal {
		case otlp.Traces:
			answer, err = to.Traces(r.ctx, u.batch.traces)
		case otlp.Logs:
			answer, err = to.Logs(r.ctx, u.batch.logs)
		default:
			answer, err = to.Metrics(r.ctx, u.batch.metrics)
		}
	}
	switch u.batch.signal {
	case otlp.Traces:
		r.counts.Spans += answer.Sent
	case otlp.Logs:
		r.counts.LogRecords += answer.Sent
	default:
		r.counts.DataPoints += answer.Sent
	}
	if answer.Rejected > 0 {
		r.counts.RefusedItems += answer.Rejected
		r.note(u.name, 0, rejectf(ReasonRefused, "%d of %d %s, up to message %d: %.200s", answer.Rejected, u.items, u.batch.signal, u.upTo, answer.Message))
	}
	if err != nil {
		var refused *otlp.RefusedError
		if !r.opt.SkipRefused || !errors.As(err, &refused) {
			return err
		}
		lost := u.items - answer.Sent - answer.Rejected
		r.counts.RefusedItems += lost
		r.note(u.name, 0, rejectf(ReasonRefused, "%d of %d %s, up to message %d: %w", lost, u.items, u.batch.signal, u.upTo, err))
	}
	r.counts.Batches++
	r.progress()
	return nil
}

func (r *replay) note(object string, offset int64, err *rejectError) {
	r.counts.Rejected[err.reason]++
	if r.opt.Problem != nil {
		r.opt.Problem(Problem{Object: object, Offset: offset, Reason: err.reason, Detail: err.err.Error()})
	}
}

func (r *replay) read(n int) { r.counts.BytesRead += int64(n) }

func (r *replay) progress() {
	if r.opt.Progress != nil {
		r.opt.Progress(r.counts)
	}
}
