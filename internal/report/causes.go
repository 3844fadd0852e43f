// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/rows"
	"github.com/gpuflight/gpuflight/semconv"
)

// maxOperations bounds the operations that Causes keeps, about 150 bytes each.
const maxOperations = 5_000_000

// Causes analyses why sessions were slow. The zero value is ready to use. It belongs to one goroutine.
type Causes struct {
	decoder  rows.Decoder
	sessions map[string]*causesOf
	order    []*causesOf
	n        int
	full     bool
}

type causesOf struct {
	id, service string
	resource    store.Attrs
	rows        analysis.Collection
	kernelNs    int64
}

// SessionCauses is the analysis of one session.
type SessionCauses struct {
	Session, Service string
	*analysis.Result
	// Times are the times of scopes on the device with the most kernel time.
	Times []analysis.ScopeTime
	// Paths are the critical paths of the typical step and of the first outlier, if there are steps and no
	// work is missing.
	Paths []StepPath
}

// StepPath is the critical path of a step.
type StepPath struct {
	Step *analysis.Step
	*analysis.CriticalPath
}

// Traces adds spans.
func (c *Causes) Traces(td ptrace.Traces) {
	if c.full {
		return
	}
	for _, b := range c.decoder.Traces("", td) {
		s := c.session(b.Session)
		for i := range b.Origins {
			if len(b.Origins[i].Resource) > 0 {
				s.resource = b.Origins[i].Resource
			}
			for _, a := range b.Origins[i].Resource {
				if a.Key == semconv.ServiceName && a.Value.Kind == store.KindString {
					s.service = a.Value.Str
				}
			}
		}
		for i := range b.Ops {
			if o := &b.Ops[i]; b.Shapes[o.Shape].Operation == store.OpKernel {
				s.kernelNs += max(o.EndNs-o.StartNs, 0)
			}
		}
		s.rows.Add(b)
		c.n += len(b.Ops)
	}
	if c.n > maxOperations {
		c.full, c.sessions, c.order = true, nil, nil
	}
}

// Logs adds what sessions say of work that is missing.
func (c *Causes) Logs(ld plog.Logs) {
	if c.full {
		return
	}
	captures := plog.NewLogs()
	for _, rl := range ld.ResourceLogs().All() {
		for _, sl := range rl.ScopeLogs().All() {
			for _, record := range sl.LogRecords().All() {
				if record.EventName() == semconv.EventCUDACapture {
					to := captures.ResourceLogs().AppendEmpty()
					rl.Resource().CopyTo(to.Resource())
					record.CopyTo(to.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty())
				}
			}
		}
	}
	for _, b := range c.decoder.Logs("", captures) {
		c.session(b.Session).rows.Add(b)
	}
}

func (c *Causes) session(id string) *causesOf {
	s := c.sessions[id]
	if s == nil {
		if c.sessions == nil {
			c.sessions = map[string]*causesOf{}
		}
		s = &causesOf{id: id}
		c.sessions[id] = s
		c.order = append(c.order, s)
	}
	return s
}

// Results analyses the sessions with work of a device, in the order of their first spans. The problem
// is a sentence if there were too many operations; the list is then empty.
func (c *Causes) Results(ctx context.Context) (list []SessionCauses, problem string, err error) {
	if c.full {
		return nil, fmt.Sprintf("more than %s operations: causes and steps are not analysed; use gpuflight view", Count(maxOperations)), nil
	}
	for _, s := range c.order {
		profile, err := analysis.NewProfile(ctx, &s.rows, analysis.Options{})
		if err != nil {
			return nil, "", err
		}
		r := profile.Result
		if len(r.Devices) == 0 {
			continue
		}
		var paths []StepPath
		if r.Missing == nil { // a path would take missing work for code of the host
			if paths, err = stepPaths(ctx, &s.rows, &r.Steps); err != nil {
				return nil, "", err
			}
		}
		list = append(list, SessionCauses{s.id, s.service, r, profile.Times, paths})
	}
	return list, "", nil
}

// stepPaths returns the paths of the typical step and of the first outlier. A step with too many operations
// has none.
func stepPaths(ctx context.Context, src analysis.Source, s *analysis.Steps) (list []StepPath, err error) {
	if s.Typical == nil {
		return nil, nil
	}
	steps := []*analysis.Step{s.Typical}
	if len(s.Outliers) > 0 {
		steps = append(steps, &s.Outliers[0].Step)
	}
	for _, step := range steps {
		path, err := analysis.StepPath(ctx, src, step.StartNs, step.StartNs+step.WallNs, s.Device)
		if errors.Is(err, analysis.ErrPathTooLong) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, StepPath{step, path})
	}
	return list, nil
}

// pathKinds returns the kinds of parts of all paths, the most time of the first path first.
func pathKinds(paths []StepPath) (kinds []analysis.PathKind) {
	seen := map[analysis.PathKind]bool{}
	for _, p := range paths {
		for _, k := range analysis.NewAnswerPath(p.CriticalPath, 0, 0).Kinds {
			if !seen[k.Kind] {
				seen[k.Kind] = true
				kinds = append(kinds, k.Kind)
			}
		}
	}
	return kinds
}

// writePaths prints the sums of critical paths, one column for each.
func writePaths(out io.Writer, s *SessionCauses, width int) {
	if len(s.Paths) == 0 {
		return
	}
	var t table
	for i := range s.Paths {
		t.head = append(t.head, pathTitle(s, i))
	}
	t.head = append(t.head, "CRITICAL PATH OF A STEP")
	for _, k := range pathKinds(s.Paths) {
		row := make([]string, 0, len(t.head))
		for _, p := range s.Paths {
			row = append(row, Time(time.Duration(p.Sums[k])))
		}
		t.add(append(row, k.Text())...)
	}
	t.write(out, width)
	fmt.Fprintln(out)
}

func pathTitle(s *SessionCauses, i int) string {
	if s.Paths[i].Step == s.Steps.Typical {
		return "TYPICAL"
	}
	return "SLOW: " + stepName(&s.Steps, s.Paths[i].Step)
}

// Profile returns what a comparison needs of the session with the most kernel time, and the number of
// sessions with kernels. The profile is nil if there is none. The error also says that there were too many operations.
func (c *Causes) Profile(ctx context.Context) (p *analysis.Profile, sessions int, err error) {
	if c.full {
		return nil, 0, fmt.Errorf("more than %s operations: send the recordings to a Collector and compare its sessions", Count(maxOperations))
	}
	var most *causesOf
	for _, s := range c.order {
		if s.kernelNs > 0 {
			sessions++
			if most == nil || s.kernelNs > most.kernelNs {
				most = s
			}
		}
	}
	if most == nil {
		return nil, 0, nil
	}
	p, err = analysis.NewProfile(ctx, &most.rows, analysis.Options{})
	return p, sessions, err
}

// Scopes returns the scopes of all sessions with the work in them and below; nil if there were too many
// operations.
func (c *Causes) Scopes() []analysis.ScopeSum {
	var all []*analysis.Collection
	for _, s := range c.order {
		all = append(all, &s.rows)
	}
	return analysis.ScopeSums(all)
}

const (
	// shownSessions bounds the sessions that a report prints, the longest first.
	shownSessions = 5
	shownOutliers = 5
)

// WriteCauses prints analyses in lines of a width (0 if it is unknown): at most shownSessions, those with
// the most kernel time first.
func WriteCauses(out io.Writer, list []SessionCauses, width int) error {
	list = byKernelTime(list)
	var b bytes.Buffer
	for i := range list {
		if i == shownSessions {
			fmt.Fprintf(&b, "%s in --json\n\n", plural(uint64(len(list)-i), "more session is", "more sessions are"))
			break
		}
		list[i].write(&b, width)
	}
	_, err := out.Write(b.Bytes())
	return err
}

// byKernelTime returns the sessions, those with the most kernel time first.
func byKernelTime(list []SessionCauses) []SessionCauses {
	kernelNs := func(s *SessionCauses) (sum int64) {
		for i := range s.Devices {
			sum += s.Devices[i].KernelNs
		}
		return sum
	}
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b SessionCauses) int { return cmp.Compare(kernelNs(&b), kernelNs(&a)) })
	return list
}

func (s *SessionCauses) write(out io.Writer, width int) {
	name := cmp.Or(s.Service, "Session")
	if s.Session != "" {
		name += " (" + s.Session + ")"
	}
	prose(out, "", fmt.Sprintf("%s: %s, %s on %s", name, Time(time.Duration(s.ToNs-s.FromNs)),
		plural(uint64(s.Operations), "operation"), plural(uint64(len(s.Devices)), "device")), width)
	for i := range s.Devices {
		writeDevice(out, &s.Devices[i], width)
	}
	fmt.Fprintln(out)
	writeSteps(out, &s.Steps, width)
	writeScopes(out, s.Times, width)
	writePaths(out, s, width)
	for i := range s.Findings {
		f := &s.Findings[i]
		lead := fmt.Sprintf("%d. ", i+1)
		indent := strings.Repeat(" ", len(lead))
		prose(out, lead, f.Text, width)
		if f.GainNs > 0 {
			prose(out, indent, fmt.Sprintf("This can save at most %s of the %s of active time, so at least %s remain. How it is computed: %s.",
				Time(time.Duration(f.GainNs)), Time(time.Duration(f.OfNs)), Time(time.Duration(f.FloorNs)), f.Formula), width)
		}
		if len(f.Evidence) > 0 {
			var spans []string
			for _, e := range f.Evidence {
				spans = append(spans, analysis.SpanText(e.Span))
			}
			prose(out, indent, "Spans: "+strings.Join(spans, " "), width)
		}
	}
	if len(s.Findings) > 0 {
		fmt.Fprintln(out)
	}
}

var boundTexts = map[analysis.Bound]string{
	analysis.BoundDevice: "limited by the device, not launch-bound", analysis.BoundLaunch: "launch-bound: limited by launches",
	analysis.BoundHost: "limited by the host, not by launches", analysis.BoundCommunication: "limited by communication, or waits for other ranks", analysis.BoundDependency: "limited by dependencies", analysis.BoundUnknown: "limit unknown",
}

func share(ns, of int64) string {
	if of <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(ns)/float64(of))
}

func deviceName(d *analysis.Device) string {
	name := "Device"
	if d.Index >= 0 {
		name += " " + strconv.FormatInt(d.Index, 10)
	}
	if d.Model != "" {
		name += " (" + d.Model + ")"
	}
	return name
}

// causesBySum returns all causes, the most time first.
func causesBySum(sums *analysis.CauseSums) []analysis.Cause {
	causes := analysis.Causes()
	slices.SortStableFunc(causes, func(a, b analysis.Cause) int { return cmp.Compare(sums[b], sums[a]) })
	return causes
}

func writeDevice(out io.Writer, d *analysis.Device, width int) {
	name, p := deviceName(d), &d.Active
	if p.WallNs <= 0 {
		prose(out, "", name+": no kernels", width)
		return
	}
	var busy []string
	for _, part := range []struct {
		name string
		ns   int64
	}{{"compute", p.ComputeNs}, {"communication only", p.CommunicationNs}, {"copies and sets only", p.CopyNs}} {
		if part.ns > 0 {
			busy = append(busy, part.name+" "+share(part.ns, p.WallNs))
		}
	}
	prose(out, "", fmt.Sprintf("%s: %s", name, boundTexts[d.Bound]), width)
	prose(out, "  ", fmt.Sprintf("active %s, busy %s (%s), idle %s", Time(time.Duration(p.WallNs)), share(p.BusyNs(), p.WallNs), strings.Join(busy, ", "),
		share(p.IdleNs, p.WallNs)), width)
	if text := launchText(d); text != "" {
		prose(out, "  ", text, width)
	}
	t := table{head: []string{"IDLE", "SHARE", "CAUSE"}}
	for _, c := range causesBySum(&p.Idle) {
		if ns := p.Idle[c]; ns > 0 {
			t.add(Time(time.Duration(ns)), share(ns, p.WallNs), c.Text())
		}
	}
	t.write(out, width)
}

// launchText says how fast the host launched, "" if that is unknown.
func launchText(d *analysis.Device) string {
	x := &d.Launches
	if x.Calls == 0 || x.IntervalP50Ns < 0 {
		return ""
	}
	return fmt.Sprintf("launches: one every %s (median); a call takes %s, and %s at the 10th percentile",
		Time(time.Duration(x.IntervalP50Ns)), Time(time.Duration(x.CallP50Ns)), Time(time.Duration(x.FloorNs)))
}

// minScopeShare is the smallest share of the active time of a scope that a report shows, maxScopeRows their number.
const (
	minScopeShare = 0.01
	maxScopeRows  = 30
)

// shownScopes returns the scopes to show, none if there is only one.
func shownScopes(times []analysis.ScopeTime) (list []*analysis.ScopeTime) {
	var all int64
	for i := range times {
		if len(times[i].Path) < 2 {
			all += times[i].WallNs
		}
	}
	for i := range times {
		if x := &times[i]; float64(x.WallNs) >= minScopeShare*float64(all) && len(list) < maxScopeRows {
			list = append(list, x)
		}
	}
	if len(list) < 2 {
		return nil
	}
	return list
}

func scopeTitle(x *analysis.ScopeTime) string {
	if len(x.Path) == 0 {
		return "(outside all scopes)"
	}
	return clean(x.Path[len(x.Path)-1], maxCell)
}

// scopeLate returns the share of the launches that came late, "-" if no launch time is known.
func scopeLate(x *analysis.ScopeTime) string { return share(x.Late, x.Launches) }

func scopeQueue(x *analysis.ScopeTime) string {
	if x.QueueP50Ns < 0 {
		return "-"
	}
	return Time(time.Duration(x.QueueP50Ns))
}

func writeScopes(out io.Writer, times []analysis.ScopeTime, width int) {
	list := shownScopes(times)
	if list == nil {
		return
	}
	t := table{head: []string{"DEVICE TIME", "IDLE", "LATE LAUNCHES", "QUEUE P50", "LIMIT", "SCOPE"}}
	for _, x := range list {
		t.add(Time(time.Duration(x.WallNs)), share(x.IdleNs, x.WallNs), scopeLate(x), scopeQueue(x), string(x.Bound),
			strings.Repeat("  ", max(0, len(x.Path)-1))+scopeTitle(x))
	}
	t.write(out, width)
	fmt.Fprintln(out)
}

func stepsTitle(s *analysis.Steps) string {
	begin := "each a scope"
	if s.Rule == "kernels" {
		begin = "each from one kernel to the next one of"
	}
	return fmt.Sprintf("%s steps, %s %q. Typical: %s", Count(uint64(s.Count)), begin, Shorten(s.Name), boundTexts[s.Typical.Bound])
}

// stepParts are the values of a step that are shown.
var stepParts = []struct {
	name string
	get  func(*analysis.StepValues) int64
}{
	{"wall", func(v *analysis.StepValues) int64 { return v.WallNs }},
	{"compute", func(v *analysis.StepValues) int64 { return v.ComputeNs }},
	{"communication only", func(v *analysis.StepValues) int64 { return v.CommunicationNs }},
	{"copies and sets only", func(v *analysis.StepValues) int64 { return v.CopyNs }},
	{"idle", func(v *analysis.StepValues) int64 { return v.IdleNs }},
}

// stepName returns the name of a step if it has one of its own, otherwise its number.
func stepName(s *analysis.Steps, step *analysis.Step) string {
	if s.Rule == "scopes" && step.Name != s.Name {
		return clean(step.Name, 24)
	}
	return strconv.FormatInt(step.Number, 10)
}

func slowReason(o *analysis.Outlier) string {
	reason := fmt.Sprintf("%s: +%s", analysis.PartText(o.Part), Time(time.Duration(o.PartExcessNs)))
	if o.Kernel != "" {
		reason += fmt.Sprintf(", +%s in %s", Time(time.Duration(o.KernelExcessNs)), compact(clean(o.Kernel, 1000)))
	}
	return reason
}

func writeSteps(out io.Writer, s *analysis.Steps, width int) {
	if s.Count == 0 {
		fmt.Fprint(out, "No steps found\n\n")
		return
	}
	prose(out, "", stepsTitle(s), width)
	t := table{head: []string{"P50", "P95", "MAX", "OF A STEP"}}
	for _, q := range stepParts {
		if q.get(&s.Max) > 0 {
			t.add(Time(time.Duration(q.get(&s.P50))), Time(time.Duration(q.get(&s.P95))), Time(time.Duration(q.get(&s.Max))), q.name)
		}
	}
	t.write(out, width)
	t = table{head: []string{"WALL", "OVER P50", "LIMIT", "STEP", "SLOW BECAUSE OF MORE"}}
	for i := range s.Outliers {
		o := &s.Outliers[i]
		if i == shownOutliers {
			t.add("", "", "", "", fmt.Sprintf("(%d more slow steps)", s.OutlierCount-int64(i)))
			break
		}
		t.add(Time(time.Duration(o.WallNs)), "+"+Time(time.Duration(o.ExcessNs)), string(o.Bound), stepName(s, &o.Step), slowReason(o))
	}
	t.write(out, width)
	fmt.Fprintln(out)
}
