// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/replay"
)

const replayUsage = `gpuflight replay sends what is in an archive again, over OTLP: to another backend, or through a Collector with
new rules. It reads what the Collector's awss3 and file exporters write (JSON or protobuf; plain, gzip or
zstd) and the logs of GPU Flight. Of a folder or a bucket it reads everything whose name says that it
is one of these; a file that is named is read whatever its name is.

Usage:
  gpuflight replay [flags] s3://BUCKET[/PREFIX]|FOLDER|FILE...

Examples:
  gpuflight replay --dry-run archive
  gpuflight replay --endpoint http://collector:4317 --protocol grpc --resume replay.state s3://telemetry/gpu
  gpuflight replay --from 2026-08-07T10:00:00Z --to 2026-08-07T12:00:00Z --rate 20000 s3://telemetry/gpu

Headers, certificates and compression of the endpoint are set by OTEL_EXPORTER_OTLP_…; where S3 is and who asks,
by AWS_REGION, AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_ENDPOINT_URL_S3 and so on. The exit status is 0 if
everything was sent.

Flags:
`

// replayConfig is what the flags of gpuflight replay say.
type replayConfig struct {
	places      []string
	env         environment
	rate        float64
	batch       int
	resume      string
	from, to    time.Time
	zone        *time.Location
	maxMessage  byteCount
	maxObject   byteCount
	retryFor    time.Duration
	dryRun      bool
	skipRefused bool
	quiet       bool
}

// parseReplay reads the flags; help goes to out.
func parseReplay(args, environ []string, out io.Writer) (cfg replayConfig, err error) {
	fs := flag.NewFlagSet("replay", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	cfg.env = newEnvironment(environ)
	cfg.maxMessage, cfg.maxObject = replay.DefaultMaxMessage, replay.DefaultMaxObject
	var from, to, zone string
	for _, v := range variables[:2] { // endpoint and protocol, as for gpuflight trace
		fs.Func(v.flag, v.usage, func(s string) error {
			cfg.env.setForAll(v.variable, s)
			return nil
		})
	}
	fs.Float64Var(&cfg.rate, "rate", 0, "send `n` spans, log records and data points a second on average; 0 as fast as the endpoint takes them")
	fs.IntVar(&cfg.batch, "batch", replay.DefaultBatchItems, "put up to `n` of them together into a batch; what was one request in the archive stays together")
	fs.StringVar(&cfg.resume, "resume", "", "keep in this `file` what was sent, and go on from there if it says so already")
	fs.StringVar(&from, "from", "", "only objects whose names have a time from this `moment` on: RFC 3339, 2026-08-07, or -24h for a day ago")
	fs.StringVar(&to, "to", "", "only objects whose names have a time before this `moment`")
	fs.StringVar(&zone, "partition-zone", "UTC", "time `zone` of the times in names, as s3_partition_timezone of the exporter: UTC, Local, Europe/Berlin")
	fs.Var(&cfg.maxMessage, "max-message", "leave out a message of more `bytes` after decompression; several times as much memory is used")
	fs.Var(&cfg.maxObject, "max-object", "stop reading an object after that many `bytes` after decompression")
	fs.DurationVar(&cfg.retryFor, "retry-for", 5*time.Minute, "give up when the endpoint has not taken a request for so long")
	fs.BoolVar(&cfg.dryRun, "dry-run", false, "read and count everything, send nothing")
	fs.BoolVar(&cfg.skipRefused, "skip-refused", false, "go on after a batch that the endpoint refuses; without it that is the end")
	fs.BoolVar(&cfg.quiet, "quiet", false, "print no progress")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			printUsage(out, replayUsage, fs)
			return cfg, err
		}
		return cfg, &usageError{err}
	}
	wrong := func(format string, args ...any) (replayConfig, error) {
		return cfg, &usageError{fmt.Errorf(format, args...)}
	}
	cfg.places = fs.Args()
	switch {
	case len(cfg.places) == 0:
		return wrong("nothing to replay: give s3://BUCKET/PREFIX, folders or files")
	case cfg.rate < 0 || math.IsNaN(cfg.rate) || math.IsInf(cfg.rate, 0):
		return wrong("--rate %v: use 0 or more", cfg.rate)
	case cfg.batch <= 0:
		return wrong("--batch %d: use 1 or more", cfg.batch)
	case cfg.maxMessage <= 0 || cfg.maxMessage > 1<<30:
		return wrong("--max-message %d: use 1 to 1GiB", cfg.maxMessage)
	case cfg.maxObject <= 0:
		return wrong("--max-object %d: use 1 or more", cfg.maxObject)
	case cfg.retryFor <= 0:
		return wrong("--retry-for %v: use more than 0", cfg.retryFor)
	case cfg.dryRun && cfg.resume != "":
		return wrong("--dry-run sends nothing, so there is nothing to --resume: give one of them")
	}
	if cfg.zone, err = time.LoadLocation(zone); err != nil {
		return wrong("--partition-zone: %w", err)
	}
	now := time.Now()
	if cfg.from, err = parseMoment(from, cfg.zone, now); err != nil {
		return wrong("--from: %w", err)
	}
	if cfg.to, err = parseMoment(to, cfg.zone, now); err != nil {
		return wrong("--to: %w", err)
	}
	if !cfg.from.IsZero() && !cfg.to.IsZero() && !cfg.from.Before(cfg.to) {
		return wrong("--from is not before --to")
	}
	return cfg, nil
}

// parseMoment reads a time; "" is the zero time.
func parseMoment(s string, zone *time.Location, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil {
		return now.Add(d), nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, s, zone); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q: use a time such as 2026-08-07T12:00:00Z or 2026-08-07, or a duration such as -24h", s)
}

func runReplay(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	cfg, err := parseReplay(args, os.Environ(), stdout)
	if err != nil {
		return err
	}
	opt := replay.Options{
		From: cfg.from, To: cfg.to, Zone: cfg.zone, BatchItems: cfg.batch, SkipRefused: cfg.skipRefused,
		MaxMessageBytes: int(cfg.maxMessage), MaxObjectBytes: int64(cfg.maxObject),
	}
	show := newProgress(stderr, cfg.quiet)
	if !cfg.dryRun {
		sender, err := newReplaySender(&cfg, show)
		if err != nil {
			return err
		}
		defer sender.Close()
		opt.Sender = sender
		if cfg.rate > 0 {
			// A batch is what is sent at once: not more than a second's worth, where messages are as small.
			opt.BatchItems = min(opt.BatchItems, int(min(max(cfg.rate, 1), math.MaxInt32)))
		}
	}
	for _, place := range cfg.places {
		s, err := replay.NewSource(ctx, place)
		if err != nil {
			return err
		}
		opt.Sources = append(opt.Sources, s)
	}
	if cfg.resume != "" {
		if opt.Exclude, err = filepath.Abs(cfg.resume); err != nil {
			return err
		}
		if opt.Journal, err = replay.OpenJournal(cfg.resume); err != nil {
			return fmt.Errorf("--resume: %w", err)
		}
		defer func() { err = errors.Join(err, opt.Journal.Close()) }()
	}
	show.measure(ctx, opt.Sources)
	opt.Problem, opt.Progress = show.problem, show.update
	counts, err := replay.Run(ctx, opt)
	show.end()
	printReplay(stdout, &counts, cfg.dryRun, time.Since(show.began))
	switch {
	case err != nil && cfg.resume != "":
		return fmt.Errorf("%w\nThe same command goes on from here, by %s", err, cfg.resume)
	case err != nil:
		return err
	case counts.Lost() > 0:
		return fmt.Errorf("not everything was sent: %s", reasons(counts.Rejected))
	case counts.Objects == 0 && counts.Skipped[replay.SkippedDone] == 0:
		return errors.New("no archived telemetry is there, or none of that time")
	}
	return nil
}

func newReplaySender(cfg *replayConfig, show *progress) (*otlp.Sender, error) {
	cfg.env.unset("GPUFLIGHT_OUTPUT")
	settings, err := otlp.FromEnv(cfg.env.get)
	if err != nil {
		return nil, &usageError{err}
	}
	settings.RetryFor = cfg.retryFor
	sender, err := otlp.NewSender(settings)
	if err != nil {
		return nil, err
	}
	sender.Retried = show.retried
	if cfg.rate > 0 {
		sender.Pace = replay.NewPacer(cfg.rate).Pace
	}
	return sender, nil
}

// printReplay says what was done.
func printReplay(out io.Writer, c *replay.Counts, dry bool, took time.Duration) {
	done := "sent"
	if dry {
		done = "would be sent"
	}
	fmt.Fprintf(out, "%s read, %.1f MB, in %v\n", count(c.Objects, "object"), float64(c.BytesRead)/1e6, took.Round(time.Millisecond))
	fmt.Fprintf(out, "%s: %s, %s, %s, in %s\n", done, count(c.Spans, "span"), count(c.LogRecords, "log record"),
		count(c.DataPoints, "data point"), strings.Replace(count(c.Batches, "batch"), "batchs", "batches", 1))
	if len(c.Skipped) > 0 {
		fmt.Fprintf(out, "not read: %s\n", reasons(c.Skipped))
	}
	if len(c.Rejected) > 0 {
		fmt.Fprintf(out, "problems: %s\n", reasons(c.Rejected))
	}
	if c.LeftOut > 0 {
		fmt.Fprintf(out, "left out: %s of signals that OTEL_…_EXPORTER turns off\n", count(c.LeftOut, "item"))
	}
	if c.RefusedItems > 0 {
		fmt.Fprintf(out, "the endpoint refused %s\n", count(c.RefusedItems, "item"))
	}
}

func count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}

func reasons(m map[string]int) string {
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%d %s", m[reason], reason))
	}
	return strings.Join(parts, ", ")
}

const (
	// maxReplayProblems is how many problems are printed one by one.
	maxReplayProblems = 20
	// Progress is printed that often on a terminal, and elsewhere, where each line stays.
	barEvery  = 100 * time.Millisecond
	lineEvery = 10 * time.Second
	// barWidth is its width in characters.
	barWidth = 24
	// maxMeasured is the number of objects up to which they are counted before they are read.
	maxMeasured = 200_000
)

// progress shows how far a replay has come: on a terminal in one line that is written again and again,
// elsewhere as a line now and then.
type progress struct {
	out      io.Writer
	quiet    bool
	terminal bool
	began    time.Time
	every    time.Duration

	shown    time.Time
	bar      bool // the last thing on the terminal is the bar
	problems int
	objects  int // 0 if not known
	now      func() time.Time
}

func newProgress(out io.Writer, quiet bool) *progress {
	p := &progress{out: out, quiet: quiet, every: lineEvery, now: time.Now}
	if f, ok := out.(*os.File); ok && os.Getenv("TERM") != "dumb" {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			p.terminal, p.every = true, barEvery
		}
	}
	p.began = p.now()
	p.shown = p.began
	return p
}

// errEnough ends the counting of objects.
var errEnough = errors.New("enough")

// measure counts the objects, for the bar. Of an archive that cannot be listed the replay will tell.
func (p *progress) measure(ctx context.Context, sources []replay.Source) {
	if !p.terminal || p.quiet {
		return
	}
	n := 0
	for _, s := range sources {
		err := s.Objects(ctx, func(replay.Object) error {
			if n++; n > maxMeasured {
				return errEnough
			}
			return nil
		})
		if err != nil {
			return
		}
	}
	p.objects = n
}

func (p *progress) update(c replay.Counts) {
	now := p.now()
	if p.quiet || now.Sub(p.shown) < p.every {
		return
	}
	rate := 0.0
	if s := now.Sub(p.began).Seconds(); s > 0 {
		rate = float64(c.Items()) / s
	}
	p.shown = now
	objects := c.Objects
	for _, n := range c.Skipped {
		objects += n
	}
	text := fmt.Sprintf("%s, %s, %s, %s, %.0f/s", count(objects, "object"), count(c.Spans, "span"),
		count(c.LogRecords, "log record"), count(c.DataPoints, "data point"), rate)
	if lost := c.Lost(); lost > 0 {
		text += ", " + count(lost, "problem")
	}
	if !p.terminal {
		fmt.Fprintf(p.out, "gpuflight replay: %s\n", text)
		return
	}
	if p.objects > 0 {
		share := min(float64(objects)/float64(p.objects), 1)
		full := int(share * barWidth)
		text = fmt.Sprintf("[%s%s] %3.0f%% of %d objects, %s", strings.Repeat("#", full), strings.Repeat(".", barWidth-full), 100*share, p.objects, text)
	}
	fmt.Fprintf(p.out, "\r\033[K%.*s", 150, text)
	p.bar = true
}

// clear takes the bar away, so that a line can be written.
func (p *progress) clear() {
	if p.bar {
		fmt.Fprint(p.out, "\r\033[K")
		p.bar = false
	}
}

func (p *progress) problem(x replay.Problem) {
	if p.problems++; p.problems > maxReplayProblems {
		return
	}
	p.clear()
	fmt.Fprintf(p.out, "gpuflight replay: %s at byte %d: %s: %s\n", x.Object, x.Offset, x.Reason, x.Detail)
}

func (p *progress) retried(err error, wait time.Duration) {
	if p.quiet {
		return
	}
	p.clear()
	fmt.Fprintf(p.out, "gpuflight replay: not taken now, again in %v: %v\n", wait.Round(time.Millisecond), err)
}

func (p *progress) end() {
	p.clear()
	if more := p.problems - maxReplayProblems; more > 0 {
		fmt.Fprintf(p.out, "gpuflight replay: and %s\n", strings.Replace(count(more, "problem"), " ", " more ", 1))
	}
}
