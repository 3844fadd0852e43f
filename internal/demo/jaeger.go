// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpuflight/gpuflight/semconv"
)

// maxTraces is what one search asks for at most: as much as jaeger.yaml lets Jaeger keep.
const maxTraces = 100_000

// client reads Jaeger's HTTP API, version 3: the one that answers in OTLP and so keeps
// nanoseconds, where the older one has microseconds.
type client struct {
	base string
}

// report is what Jaeger has.
type report struct {
	services []string
	traces   int
	spans    int
	kernels  int64
	// kernelTime is the sum of all kernels' durations.
	kernelTime time.Duration
	// byTime has the kernels by name, the longest in total first.
	byTime []kernelTotal
	// copies has the copies by kind, in the order of their names.
	copies []copyTotal
	// first and last are the bounds of all work on the device, in Unix nanoseconds; 0 for none.
	first, last int64
}

type kernelTotal struct {
	name     string
	launches int64
	time     time.Duration
	// occupancy and gridFill are what the occupancy processor added.
	occupancy, gridFill mean
	// limiters has the time of the launches by what limited their occupancy.
	limiters map[string]time.Duration
}

type copyTotal struct {
	kind   string
	copies int64
	bytes  int64
	time   time.Duration
	// throughput (By/s) and link (0-1) are what the occupancy processor added.
	throughput, link mean
}

// mean is a mean by time: a value that held for longer counts for more.
type mean struct {
	sum    float64
	weight time.Duration
}

func (m *mean) add(value json.Number, d time.Duration) error {
	if value == "" {
		return nil // the span does not have it
	}
	v, err := value.Float64()
	if err != nil {
		return err
	}
	m.sum += v * float64(d)
	m.weight += d
	return nil
}

// text writes the mean, or a dash where no span had a value.
func (m mean) text(format string, factor float64) string {
	if m.weight == 0 {
		return "-"
	}
	return fmt.Sprintf(format, factor*m.sum/float64(m.weight))
}

// read fetches everything that Jaeger has of some services. Before the first span has arrived the
// report is empty; that is no error.
func (c client) read(ctx context.Context, of []string) (report, error) {
	var r report
	var services struct {
		Services []string `json:"services"`
	}
	if _, err := c.get(ctx, "/api/v3/services", &services); err != nil {
		return r, err
	}
	slices.Sort(services.Services)
	for _, name := range services.Services {
		if slices.Contains(of, name) {
			r.services = append(r.services, name)
		}
	}

	seen := spanSet{
		traces: map[string]struct{}{}, spans: map[string]struct{}{},
		kernels: map[string]*kernelTotal{}, copies: map[string]*copyTotal{},
	}
	for _, service := range r.services {
		query := url.Values{
			"query.service_name":   {service},
			"query.start_time_min": {time.Unix(0, 0).UTC().Format(time.RFC3339Nano)},
			// Device clocks may run ahead a little; a day is more than they ever do.
			"query.start_time_max": {time.Now().UTC().Add(24 * time.Hour).Format(time.RFC3339Nano)},
			"query.num_traces":     {strconv.Itoa(maxTraces)},
		}
		var answer tracesAnswer
		found, err := c.get(ctx, "/api/v3/traces?"+query.Encode(), &answer)
		if err != nil {
			return r, err
		}
		if !found {
			continue
		}
		if err := seen.add(answer); err != nil {
			return r, err
		}
	}

	r.traces, r.spans = len(seen.traces), len(seen.spans)
	r.first, r.last = seen.first, seen.last
	for _, k := range seen.kernels {
		r.kernels += k.launches
		r.kernelTime += k.time
		r.byTime = append(r.byTime, *k)
	}
	slices.SortFunc(r.byTime, func(a, b kernelTotal) int {
		return cmp.Or(cmp.Compare(b.time, a.time), cmp.Compare(a.name, b.name))
	})
	for _, c := range seen.copies {
		r.copies = append(r.copies, *c)
	}
	slices.SortFunc(r.copies, func(a, b copyTotal) int { return cmp.Compare(a.kind, b.kind) })
	return r, nil
}

// get decodes one answer into out. It returns false where Jaeger answers that it has none.
func (c client) get(ctx context.Context, path string, out any) (found bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, http.NoBody)
	if err != nil {
		return false, err
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		return false, nil
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return false, fmt.Errorf("jaeger answers %s: %s", resp.Status, bytes.TrimSpace(text))
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return false, fmt.Errorf("jaeger's answer to %s: %w", req.URL.Path, err)
	}
	return true, nil
}

// tracesAnswer is the part of OTLP in JSON that the report is made of.
type tracesAnswer struct {
	Result struct {
		ResourceSpans []struct {
			ScopeSpans []struct {
				Spans []span `json:"spans"`
			} `json:"scopeSpans"`
		} `json:"resourceSpans"`
	} `json:"result"`
}

type span struct {
	TraceID string `json:"traceId"`
	SpanID  string `json:"spanId"`
	Name    string `json:"name"`
	// OTLP's JSON writes 64-bit integers as strings.
	Start      string `json:"startTimeUnixNano"`
	End        string `json:"endTimeUnixNano"`
	Attributes []struct {
		Key   string `json:"key"`
		Value value  `json:"value"`
	} `json:"attributes"`
}

type value struct {
	String string      `json:"stringValue"`
	Int    json.Number `json:"intValue"`
	Double json.Number `json:"doubleValue"`
	Array  struct {
		Values []value `json:"values"`
	} `json:"arrayValue"`
}

// spanSet gathers spans by their ids: one that was sent twice is one.
type spanSet struct {
	traces, spans map[string]struct{}
	kernels       map[string]*kernelTotal
	copies        map[string]*copyTotal
	first, last   int64
}

func (s *spanSet) add(answer tracesAnswer) error {
	for _, resource := range answer.Result.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			for _, sp := range scope.Spans {
				id := sp.TraceID + "/" + sp.SpanID
				if _, known := s.spans[id]; known {
					continue
				}
				s.spans[id] = struct{}{}
				s.traces[sp.TraceID] = struct{}{}
				if err := s.addWork(&sp); err != nil {
					return fmt.Errorf("span %s: %w", id, err)
				}
			}
		}
	}
	return nil
}

// addWork counts a span that is work on the device; others it leaves alone.
func (s *spanSet) addWork(sp *span) error {
	var operation, kind, limiter string
	var bytes int64
	var occupancy, gridFill, throughput, link json.Number
	for _, a := range sp.Attributes {
		switch a.Key {
		case semconv.CUDAOperation:
			operation = a.Value.String
		case semconv.CUDAOccupancyTheoretical:
			occupancy = a.Value.Double
		case semconv.CUDAOccupancyGridFill:
			gridFill = a.Value.Double
		case semconv.CUDAOccupancyLimiter:
			var names []string
			for _, v := range a.Value.Array.Values {
				names = append(names, v.String)
			}
			limiter = strings.Join(names, ", ")
		case semconv.CUDAMemcpyKind:
			kind = a.Value.String
		case semconv.CUDAMemcpySize:
			n, err := a.Value.Int.Int64()
			if err != nil {
				return err
			}
			bytes = n
		case semconv.CUDAMemcpyThroughput:
			throughput = a.Value.Double
		case semconv.CUDAMemcpyLinkUtilization:
			link = a.Value.Double
		}
	}
	switch operation {
	case semconv.CUDAOperationKernel, semconv.CUDAOperationMemcpy, semconv.CUDAOperationMemset, semconv.CUDAOperationGraph:
	default:
		return nil
	}
	start, end, err := sp.times()
	if err != nil {
		return err
	}
	if s.first == 0 || start < s.first {
		s.first = start
	}
	s.last = max(s.last, end)
	d := time.Duration(end - start)

	switch operation {
	case semconv.CUDAOperationKernel:
		k := s.kernels[sp.Name]
		if k == nil {
			k = &kernelTotal{name: sp.Name, limiters: map[string]time.Duration{}}
			s.kernels[sp.Name] = k
		}
		k.launches++
		k.time += d
		if limiter != "" {
			k.limiters[limiter] += d
		}
		return errors.Join(k.occupancy.add(occupancy, d), k.gridFill.add(gridFill, d))
	case semconv.CUDAOperationMemcpy:
		c := s.copies[kind]
		if c == nil {
			c = &copyTotal{kind: kind}
			s.copies[kind] = c
		}
		c.copies++
		c.bytes += bytes
		c.time += d
		return errors.Join(c.throughput.add(throughput, d), c.link.add(link, d))
	}
	return nil
}

// limiter returns what limited the launches that took the most time, or a dash.
func (k *kernelTotal) limiter() string {
	name, most := "-", time.Duration(-1)
	for n, d := range k.limiters {
		if d > most || d == most && n < name {
			name, most = n, d
		}
	}
	return name
}

func (s *span) times() (start, end int64, err error) {
	if start, err = strconv.ParseInt(s.Start, 10, 64); err != nil {
		return 0, 0, err
	}
	end, err = strconv.ParseInt(s.End, 10, 64)
	return start, end, err
}

// print writes the report with the n kernels that took the most time.
func (r *report) print(w io.Writer, n int) {
	fmt.Fprintf(w, "services  ")
	for i, name := range r.services {
		if i > 0 {
			fmt.Fprint(w, ", ")
		}
		fmt.Fprint(w, name)
	}
	fmt.Fprintf(w, "\ntraces    %d\n", r.traces)
	fmt.Fprintf(w, "spans     %d, %d of them kernels with %v of device time\n\n", r.spans, r.kernels, r.kernelTime)

	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "time\tshare\tlaunches\toccupancy\tgrid fill\tlimited by\t  kernel\n")
	for _, k := range r.byTime[:min(n, len(r.byTime))] {
		share := 0.0
		if r.kernelTime > 0 {
			share = 100 * float64(k.time) / float64(r.kernelTime)
		}
		fmt.Fprintf(table, "%.3f ms\t%.1f %%\t%d\t%s\t%s\t%s\t  %s\n", float64(k.time)/1e6, share, k.launches,
			k.occupancy.text("%.1f %%", 100), k.gridFill.text("%.1f %%", 100), k.limiter(), k.name)
	}
	table.Flush()

	if len(r.copies) == 0 {
		return
	}
	fmt.Fprintln(w)
	fmt.Fprint(table, "time\tbytes\tcopies\tthroughput\tof the link\t  copy\n")
	for _, c := range r.copies {
		fmt.Fprintf(table, "%.3f ms\t%d\t%d\t%s\t%s\t  %s\n", float64(c.time)/1e6, c.bytes, c.copies,
			c.throughput.text("%.3f GB/s", 1e-9), c.link.text("%.1f %%", 100), c.kind)
	}
	table.Flush()
}

// printAddress says where to look. A Jaeger compiled from its module has no web page in it,
// only a text that says so; then the address that does show the traces is the API's.
func printAddress(ctx context.Context, w io.Writer, c client, services []string) {
	fmt.Fprintf(w, "open  %s\n", c.base)
	if c.hasPage(ctx) || len(services) == 0 {
		return
	}
	query := url.Values{"service": {services[0]}, "limit": {"20"}, "lookback": {"1h"}}
	fmt.Fprintf(w, "This Jaeger was built from its Go module, which has no web page in it; what it knows is at\n"+
		"      %s/api/traces?%s\n"+
		"docs/jaeger.md tells how to have the page: another binary (JAEGER=...), or Jaeger's container.\n", c.base, query.Encode())
}

func (c client) hasPage(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/", http.NoBody)
	if err != nil {
		return false
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return err == nil && resp.StatusCode == http.StatusOK && !bytes.Contains(text, []byte("This is not the Jaeger UI you are looking for"))
}
