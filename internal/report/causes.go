// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

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
	rows        analysis.Collection
	kernelNs    int64
}

// SessionCauses is the analysis of one session.
type SessionCauses struct {
	Session string `json:"session"`
	Service string `json:"service,omitempty"`
	*analysis.Result
}

// Traces adds spans.
func (c *Causes) Traces(td ptrace.Traces) {
	if c.full {
		return
	}
	for _, b := range c.decoder.Traces("", td) {
		s := c.sessions[b.Session]
		if s == nil {
			if c.sessions == nil {
				c.sessions = map[string]*causesOf{}
			}
			s = &causesOf{id: b.Session}
			c.sessions[b.Session] = s
			c.order = append(c.order, s)
		}
		for i := range b.Origins {
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

// Results analyses the sessions with work of a device, in the order of their first spans. The problem
// is a sentence if there were too many operations; the list is then empty.
func (c *Causes) Results(ctx context.Context) (list []SessionCauses, problem string, err error) {
	if c.full {
		return nil, fmt.Sprintf("more than %s operations: causes and steps are not analysed; use gpuflight view", Count(maxOperations)), nil
	}
	for _, s := range c.order {
		r, err := analysis.Run(ctx, &s.rows, analysis.Options{})
		if err != nil {
			return nil, "", err
		}
		if len(r.Devices) > 0 {
			list = append(list, SessionCauses{s.id, s.service, r})
		}
	}
	return list, "", nil
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

const (
	// shownSessions bounds the sessions that a report prints, the longest first.
	shownSessions = 5
	shownOutliers = 5
)

// WriteCauses prints analyses: at most shownSessions, those with the most kernel time first.
func WriteCauses(out io.Writer, list []SessionCauses) error {
	list = slices.Clone(list)
	kernelNs := func(s *SessionCauses) (sum int64) {
		for i := range s.Devices {
			sum += s.Devices[i].KernelNs
		}
		return sum
	}
	slices.SortStableFunc(list, func(a, b SessionCauses) int { return cmp.Compare(kernelNs(&b), kernelNs(&a)) })
	for i := range list {
		if i == shownSessions {
			fmt.Fprintf(out, "%d more sessions have causes in --json\n\n", len(list)-i)
			break
		}
		if err := list[i].write(out); err != nil {
			return err
		}
	}
	return nil
}

func (s *SessionCauses) write(out io.Writer) error {
	wall := time.Duration(s.ToNs - s.FromNs)
	fmt.Fprintf(out, "Session %s: %s, %s operations\n", shorten(cmp.Or(s.Service, s.Session, "without a name")), Time(wall), Count(uint64(s.Operations)))
	for i := range s.Devices {
		if err := writeDevice(out, &s.Devices[i]); err != nil {
			return err
		}
	}
	fmt.Fprintln(out)
	if err := writeSteps(out, &s.Steps); err != nil {
		return err
	}
	for i := range s.Findings {
		f := &s.Findings[i]
		fmt.Fprintf(out, "%d. %s\n", i+1, strings.Join(wrap(f.Text, 97), "\n   "))
		if f.GainNs > 0 {
			fmt.Fprintf(out, "   At least %s of %s remain (minus %s).\n", Time(time.Duration(f.FloorNs)), Time(time.Duration(f.OfNs)), f.Formula)
		}
		if len(f.Evidence) > 0 {
			var spans []string
			for _, e := range f.Evidence {
				spans = append(spans, fmt.Sprintf("%016x", uint64(e.Span)))
			}
			fmt.Fprintf(out, "   Spans: %s\n", strings.Join(spans, " "))
		}
	}
	if len(s.Findings) > 0 {
		fmt.Fprintln(out)
	}
	return nil
}

var boundTexts = map[analysis.Bound]string{
	analysis.BoundDevice: "limited by the device", analysis.BoundLaunch: "limited by launches (launch-bound)",
	analysis.BoundHost: "limited by the host", analysis.BoundDependency: "limited by dependencies", analysis.BoundUnknown: "limit unknown",
}

func writeDevice(out io.Writer, d *analysis.Device) error {
	name := "Device"
	if d.Index >= 0 {
		name += " " + strconv.FormatInt(d.Index, 10)
	}
	p := &d.Active
	share := func(ns int64) string {
		if p.WallNs <= 0 {
			return "-"
		}
		return fmt.Sprintf("%.1f%%", 100*float64(ns)/float64(p.WallNs))
	}
	fmt.Fprintf(out, "%s: active %s, busy %s (compute %s, communication %s, copies only %s), idle %s: %s\n",
		name, Time(time.Duration(p.WallNs)), share(p.BusyNs()), share(p.ComputeNs), share(p.CommunicationNs), share(p.CopyNs), share(p.IdleNs), boundTexts[d.Bound])
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	causes := analysis.Causes()
	slices.SortStableFunc(causes, func(a, b analysis.Cause) int { return cmp.Compare(p.Idle[b], p.Idle[a]) })
	if p.IdleNs > 0 {
		fmt.Fprint(w, "IDLE\tSHARE\t  CAUSE\n")
	}
	for _, c := range causes {
		if ns := p.Idle[c]; ns > 0 {
			fmt.Fprintf(w, "%s\t%s\t  %s\n", Time(time.Duration(ns)), share(ns), c.Text())
		}
	}
	return w.Flush()
}

func writeSteps(out io.Writer, s *analysis.Steps) error {
	if s.Count == 0 {
		fmt.Fprint(out, "No steps found\n\n")
		return nil
	}
	begin := "scopes"
	if s.Rule == "kernels" {
		begin = "the kernel"
	}
	fmt.Fprintf(out, "%s steps, which begin with %s %q\n", Count(uint64(s.Count)), begin, shorten(s.Name))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "P50\tP95\tMAX\t  STEP\n")
	line := func(name string, get func(*analysis.StepValues) int64) {
		if get(&s.Max) > 0 {
			fmt.Fprintf(w, "%s\t%s\t%s\t  %s\n", Time(time.Duration(get(&s.P50))), Time(time.Duration(get(&s.P95))), Time(time.Duration(get(&s.Max))), name)
		}
	}
	line("wall", func(v *analysis.StepValues) int64 { return v.WallNs })
	line("compute", func(v *analysis.StepValues) int64 { return v.ComputeNs })
	line("communication only", func(v *analysis.StepValues) int64 { return v.CommunicationNs })
	line("copies only", func(v *analysis.StepValues) int64 { return v.CopyNs })
	line("idle", func(v *analysis.StepValues) int64 { return v.IdleNs })
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range s.Outliers {
		if i == shownOutliers {
			fmt.Fprintf(out, "%d more slow steps\n", len(s.Outliers)-i)
			break
		}
		o := &s.Outliers[i]
		part := o.Part
		if o.Kernel != "" {
			part += ", mostly " + shorten(o.Kernel)
		}
		fmt.Fprintf(out, "Slow: step %d took %s, of which %s more than usual is %s\n", o.Number, Time(time.Duration(o.WallNs)), Time(time.Duration(o.PartExcessNs)), part)
	}
	fmt.Fprintln(out)
	return nil
}

// wrap breaks a text into lines of at most n characters, at spaces.
func wrap(text string, n int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(clean(text, 1000)) {
		if line != "" && len([]rune(line))+1+len([]rune(word)) > n {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
