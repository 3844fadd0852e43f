// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command ui measures the web UI in headless Chromium on a session of 64 lanes. It reports the time to
// the first page, and the time of the frames of pans and zooms of the timeline.
//
// It sends a generated session to the Collector as OTLP. With -session it opens an exported session
// instead, for example one of 100 M kernels. Then it asks for the answers behind each view, of the
// whole session and of windows. -state keeps the store for another run, which generates nothing.
//
// The exit status is 1 if a limit is reached. The limits are 1 s for the first page, 16 ms for the
// median frame of a motion, and 200 ms for the 95th percentile of each request. Analyses and comparisons
// have 5 s, and 500 ms in windows.
package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"

	"github.com/gpuflight/gpuflight/semconv"
)

// Limits in ms: of the median frame, and of the first page. The others are of the 95th percentile: of a
// request, of the analysis of a window, and of that of a whole session.
const (
	frameLimit   = 16
	pageLimit    = 1000
	requestLimit = 200
	windowLimit  = 500
	wholeLimit   = 5000
)

func main() {
	kernels := flag.Int("kernels", 1_000_000, "kernels of the generated session")
	lanes := flag.Int("lanes", 64, "streams of the generated session")
	session := flag.String("session", os.Getenv("GPUFLIGHT_BENCH_SESSION"), "an exported session to measure instead")
	collector := flag.String("collector", "bin/otelcol-gpuflight", "the collector")
	live := flag.Bool("live", false, "measure requests while 40,000 kernels arrive each second, and no frames")
	state := flag.String("state", "", "a folder that keeps the store; if it has a session, that is measured")
	flag.Parse()
	if err := bench(*kernels, *lanes, *live, *session, *collector, *state); err != nil {
		fmt.Fprintln(os.Stderr, "ui:", err)
		os.Exit(1)
	}
}

func bench(kernels, lanes int, live bool, session, collector, state string) (err error) {
	if state == "" {
		state, err = os.MkdirTemp("", "uibench")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(state)) }()
	}
	var ports [4]string
	for i := range ports {
		if ports[i], err = freePort(); err != nil {
			return err
		}
	}
	logs := filepath.Join(state, "logs")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	_, metrics, _ := net.SplitHostPort(ports[3])
	// Without the receivers that observe this machine: they add sessions.
	p := exec.Command(collector, "--config", "config/local.yaml", "--config", "yaml:service::pipelines::traces::receivers: [otlp]",
		"--config", "yaml:service::pipelines::logs::receivers: [otlp]", "--config", "yaml:service::pipelines::metrics::receivers: [otlp, gpu_usage]")
	p.Env = append(os.Environ(), "GPUFLIGHT_LOGS="+logs, "GPUFLIGHT_STATE="+state, "GPUFLIGHT_LISTEN="+ports[0], "GPUFLIGHT_LISTEN_HTTP="+ports[1],
		"GPUFLIGHT_UI="+ports[2], "GPUFLIGHT_METRICS_PORT="+metrics, "GPUFLIGHT_PROMETHEUS_PORT=0")
	var output bytes.Buffer
	p.Stdout, p.Stderr = io.Discard, &output
	if err := p.Start(); err != nil {
		return err
	}
	defer func() {
		_ = p.Process.Signal(syscall.SIGTERM)
		_ = p.Wait()
	}()
	base := "http://" + ports[2]
	if err := ready(base, ports[1]); err != nil {
		return fmt.Errorf("%w: %s", err, output.Bytes())
	}
	begin := time.Now()
	g := newGenerator(lanes)
	if _, _, _, found := largest(base); found == nil {
		err = nil
	} else if session != "" {
		err = load(base, session)
	} else {
		err = g.generate("http://"+ports[1], kernels)
	}
	if err != nil {
		return err
	}
	fmt.Printf("the session is stored after %v\n", time.Since(begin).Round(time.Second))
	if !live {
		return errors.Join(frames(base), requests(base))
	}
	_, start, length, err := largest(base)
	if err != nil {
		return err
	}
	g.at, g.ids = start+length, uint64(time.Now().UnixNano())
	ctx, stop := context.WithCancel(context.Background())
	arrived := make(chan error, 1)
	go func() { arrived <- g.arrive(ctx, "http://"+ports[1]) }()
	err = requests(base)
	stop()
	return errors.Join(err, <-arrived)
}

// largest returns the id, the start and the length of the session with the most kernels.
func largest(base string) (id string, start, length int64, err error) {
	var page struct {
		Sessions []struct {
			ID         string           `json:"id"`
			Start      int64            `json:"start,string"`
			DurationNs int64            `json:"duration_ns"`
			Operations map[string]int64 `json:"operations"`
		} `json:"sessions"`
	}
	if err := getJSON(base+"/api/v1/sessions?limit=1000", &page); err != nil {
		return "", 0, 0, err
	}
	most := int64(0)
	for _, s := range page.Sessions {
		if n := s.Operations["kernel"]; n > most {
			id, start, length, most = s.ID, s.Start, s.DurationNs, n
		}
	}
	if id == "" {
		return "", 0, 0, errors.New("no session has kernels")
	}
	return id, start, length, nil
}

func getJSON(address string, answer any) error {
	body, err := read(address)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, answer)
}

// read reads an answer as the UI does: the timeline's is binary.
func read(address string) ([]byte, error) {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, err
	}
	if strings.Contains(address, "/timeline?") {
		request.Header.Set("Accept", "application/octet-stream")
	}
	r, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Body.Close() }()
	body, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.200s", address, r.Status, body)
	}
	return body, err
}

// What a view asks for: the whole session, windows of it, an analysis.
const (
	whole = 1 << iota
	window
	analysis
)

// requests measures the requests behind each view, after a first analysis: the store keeps its parts, and a
// request computes for 20 s at most. Windows are a hundredth of the session, each at
// another place, as those of somebody who looks around.
func requests(base string) error {
	id, _, length, err := largest(base)
	if err != nil {
		return err
	}
	var scopes struct {
		Nodes []struct {
			Path      uint32 `json:"path"`
			Instances int64  `json:"instances"`
		} `json:"nodes"`
	}
	session := "/sessions/" + url.PathEscape(id)
	var overview struct {
		Lanes []json.RawMessage `json:"lanes"`
	}
	if err := getJSON(base+"/api/v1"+session, &overview); err != nil {
		return err
	}
	if err := getJSON(base+"/api/v1"+session+"/scopes", &scopes); err != nil {
		return err
	}
	path := uint32(0)
	for _, n := range scopes.Nodes {
		if n.Instances > 0 {
			path = n.Path
		}
	}
	var found struct {
		Operations []struct {
			Span  string `json:"span"`
			Start int64  `json:"start"`
			Shape uint32 `json:"shape"`
		} `json:"operations"`
	}
	if err := getJSON(fmt.Sprintf("%s/api/v1%s/operations?limit=1&from=%d", base, session, length/2), &found); err != nil {
		return err
	}
	if len(found.Operations) == 0 {
		return errors.New("the session has no operation in its second half")
	}
	op := found.Operations[0]
	begin := time.Now()
	for complete := false; !complete; {
		var analysed struct {
			Complete bool `json:"complete"`
		}
		if err := getJSON(base+"/api/v1"+session+"/analysis", &analysed); err != nil {
			return err
		}
		complete = analysed.Complete
		if !complete && time.Since(begin) > 10*time.Minute {
			return errors.New("the first analysis is not complete after 10 minutes")
		}
	}
	fmt.Printf("the first analysis of the whole session took %v\n", time.Since(begin).Round(100*time.Millisecond))
	fmt.Println("request                                    n    p50    p95    max (ms)")
	random := rand.New(rand.NewPCG(3, 4))
	var slow []string
	for _, view := range []struct {
		// path ends with min_ns= if the view asks for gaps that it can show: those of a 4,000th of the interval.
		path string
		asks int
	}{
		{"/sessions", whole},
		{session, whole},
		{fmt.Sprintf("%s/timeline?bins=%d&slices=8000", session, min(1500, 50_000/max(len(overview.Lanes), 1))), whole | window},
		{session + "/spans?overlapping=true&sort=duration&limit=2000", whole | window},
		{session + "/gaps?limit=300&overlapping=true", whole | window},
		{session + "/gaps?limit=2000&overlapping=true&min_ns=", whole | window},
		{session + "/kernels?limit=200", whole | window},
		{session + "/kernels?group=shape&limit=200", whole | window},
		{session + "/kernels?group=path&limit=200", whole | window},
		{session + "/kernels?group=lane&limit=200", whole | window},
		{session + "/operations?operation=kernel&limit=500", whole | window},
		{fmt.Sprintf("%s/operations?sort=duration&path=%d&limit=500", session, path), whole | window},
		{fmt.Sprintf("%s/operations?sort=queue&path=%d&limit=500", session, path), whole | window},
		{session + "/scopes?idle=true", whole},
		{fmt.Sprintf("%s/scopes/%d/instances?idle=true&sort=device&limit=200", session, path), whole},
		{session + "/stacks", whole | window},
		{session + "/functions", whole},
		{session + "/series?source=system", whole},
		{session + "/logs?limit=200", whole},
		{"/usage", whole},
		{"/usage?by=scope", whole},
		{"/usage/cost", whole},
		{fmt.Sprintf("%s/spans/%s", session, op.Span), whole},
		{fmt.Sprintf("%s/spans/%s?at=%d", session, op.Span, op.Start), whole},
		{fmt.Sprintf("%s/shapes?ids=%d", session, op.Shape), whole},
		{session + "/samples?by=line", whole},
		{session + "/texts", whole},
		{session + "/analysis", whole | window | analysis},
		{session + "/analysis/scopes", whole | window | analysis},
		{session + "/analysis/critical?limit=1000", window | analysis},
		{fmt.Sprintf("/compare?a=%[1]s&b=%[1]s", url.QueryEscape(id)), whole | analysis},
	} {
		for _, interval := range []int{whole, window} {
			if view.asks&interval == 0 {
				continue
			}
			limit, parts := float64(requestLimit), int64(100)
			switch {
			case view.asks&analysis != 0 && interval == window:
				limit = windowLimit
			case view.asks&analysis != 0:
				limit = wholeLimit
			}
			if view.asks&whole == 0 {
				parts = 1000 // a critical path has at most 200,000 operations
			}
			var times []float64
			// Twenty, or fewer if they are slow.
			for end := time.Now().Add(10 * time.Second); len(times) < 20 && (len(times) < 5 || time.Now().Before(end)); {
				address, span := base+"/api/v1"+view.path, length
				if interval == window {
					span /= parts
				}
				if strings.HasSuffix(address, "=") {
					address += strconv.FormatInt(span/4000, 10)
				}
				if interval == window {
					from := random.Int64N(length - span)
					separator := "?"
					if strings.Contains(address, "?") {
						separator = "&"
					}
					address += fmt.Sprintf("%sfrom=%d&to=%d", separator, from, from+span)
				}
				begin := time.Now()
				if _, err := read(address); err != nil {
					return err
				}
				times = append(times, float64(time.Since(begin))/1e6)
			}
			slices.Sort(times)
			name, _, _ := strings.Cut(strings.TrimPrefix(view.path, session), "&")
			if name == "" {
				name = "/sessions/{session}"
			}
			if interval == window {
				name += ", window"
			}
			p95 := times[(len(times)*95+99)/100-1]
			fmt.Printf("%-40s %3d %6.1f %6.1f %6.1f\n", name, len(times), times[len(times)/2], p95, times[len(times)-1])
			if p95 >= limit {
				slow = append(slow, fmt.Sprintf("%s (%.0f ms)", name, limit))
			}
		}
	}
	if len(slow) > 0 {
		return fmt.Errorf("the 95th percentile is at the limit or above: %s", strings.Join(slow, ", "))
	}
	return nil
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// ready waits until the UI and the receiver of OTLP answer.
func ready(base, otlp string) error {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if r, err := http.Get(base + "/api/v1/health"); err == nil {
			_ = r.Body.Close()
			c, err := net.Dial("tcp", otlp)
			if err == nil && r.StatusCode == http.StatusOK {
				return c.Close()
			}
		}
	}
	return errors.New("the collector is not ready")
}

// load imports an exported session.
func load(base, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return post(base+"/api/v1/import", "application/octet-stream", f, http.StatusCreated)
}

func post(address, kind string, body io.Reader, status int) error {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodPost, address, body)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", kind)
	if kind == "application/x-protobuf" {
		request.Header.Set("Content-Encoding", "gzip")
	}
	r, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }()
	if r.StatusCode != status {
		text, _ := io.ReadAll(io.LimitReader(r.Body, 1000))
		return fmt.Errorf("%s: %s: %s", address, r.Status, text)
	}
	return nil
}

// generator makes steps of 1,000 kernels on all lanes: kernels of 2 to 200 µs one after another, with
// gaps, under nested scopes. Each step has another name, with its number.
type generator struct {
	*rand.Rand
	lanes, steps int
	at           int64
	ids          uint64
}

func newGenerator(lanes int) *generator {
	return &generator{rand.New(rand.NewPCG(1, 2)), lanes, 0, time.Now().Add(-time.Hour).UnixNano(), 0}
}

const perStep = 1000

// generate sends kernels.
func (g *generator) generate(otlp string, kernels int) error {
	for sent := 0; sent < kernels; {
		n := min(20*perStep, kernels-sent)
		if err := g.send(otlp, n); err != nil {
			return err
		}
		sent += n
	}
	return nil
}

// send sends one request.
func (g *generator) send(otlp string, kernels int) error {
	names := []string{"ampere_gemm", "flash_fwd", "layer_norm", "elementwise_add", "reduce_sum", "softmax", "ncclAllReduce", "conv2d"}
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	rs.Resource().Attributes().PutStr(semconv.ServiceInstanceID, "bench-session")
	rs.Resource().Attributes().PutStr(semconv.ServiceName, "bench")
	spans := rs.ScopeSpans().AppendEmpty().Spans()
	add := func(name, operation string, parent pcommon.SpanID, start, end int64) ptrace.Span {
		g.ids++
		var id pcommon.SpanID
		binary.BigEndian.PutUint64(id[:], g.ids)
		s := spans.AppendEmpty()
		s.SetTraceID(pcommon.TraceID{15: 1})
		s.SetSpanID(id)
		s.SetParentSpanID(parent)
		s.SetName(name)
		s.SetKind(ptrace.SpanKindInternal)
		s.SetStartTimestamp(pcommon.Timestamp(start))
		s.SetEndTimestamp(pcommon.Timestamp(end))
		s.Attributes().PutStr(semconv.CUDAOperation, operation)
		return s
	}
	for sent := 0; sent < kernels; sent += perStep {
		step := add(fmt.Sprintf("step %d", g.steps), semconv.CUDAOperationScope, pcommon.SpanID{}, g.at, g.at)
		forward := add("forward", semconv.CUDAOperationScope, step.SpanID(), g.at, g.at)
		end := make([]int64, g.lanes)
		for i := range end {
			end[i] = g.at + g.Int64N(50_000)
		}
		for i := range min(perStep, kernels-sent) {
			lane := i % g.lanes
			length := 2_000 + g.Int64N(198_000)
			k := add(names[g.IntN(len(names))], semconv.CUDAOperationKernel, forward.SpanID(), end[lane], end[lane]+length)
			k.Attributes().PutStr(semconv.HWID, fmt.Sprintf("GPU-%d", lane/8))
			k.Attributes().PutInt(semconv.CUDAStreamID, int64(lane%8))
			launched := end[lane] - g.Int64N(50_000)
			k.Attributes().PutInt(semconv.CUDALaunchStartTimeUnixNano, launched-5_000)
			k.Attributes().PutInt(semconv.CUDALaunchEndTimeUnixNano, launched)
			k.Attributes().PutDouble(semconv.CUDAQueueDuration, float64(end[lane]-launched)/1e9)
			end[lane] += length + g.Int64N(30_000)
			g.at = max(g.at, end[lane])
		}
		step.SetEndTimestamp(pcommon.Timestamp(g.at))
		forward.SetEndTimestamp(pcommon.Timestamp(g.at - 1000))
		g.at += 100_000
		g.steps++
	}
	data, err := ptraceotlp.NewExportRequestFromTraces(td).MarshalProto()
	if err != nil {
		return err
	}
	var body bytes.Buffer
	z, _ := gzip.NewWriterLevel(&body, gzip.BestSpeed)
	if _, err := z.Write(data); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return post(otlp+"/v1/traces", "application/x-protobuf", &body, http.StatusOK)
}

// arrive sends 40,000 kernels each second, in two requests, until the context ends.
func (g *generator) arrive(ctx context.Context, otlp string) error {
	begin := time.Now()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			fmt.Printf("%.0f kernels/s arrived\n", float64(n)*20*perStep/time.Since(begin).Seconds())
			return nil
		case <-time.After(time.Until(begin.Add(time.Duration(n) * 500 * time.Millisecond))):
		}
		if err := g.send(otlp, 20*perStep); err != nil {
			return err
		}
	}
}

// frames runs web/test/frames.mjs and prints what it measured.
func frames(base string) error {
	install := exec.Command("scripts/ui", "install")
	install.Stderr = os.Stderr
	if err := install.Run(); err != nil {
		return err
	}
	node := exec.Command("node", "test/frames.mjs")
	node.Dir, node.Stderr = "web", os.Stderr
	node.Env = append(os.Environ(), "GPUFLIGHT_URL="+base)
	out, err := node.Output()
	if err != nil {
		return fmt.Errorf("frames.mjs: %w", err)
	}
	type motion struct {
		Frames   int     `json:"frames"`
		PaintP50 float64 `json:"paint_p50"`
		PaintP95 float64 `json:"paint_p95"`
		FrameP50 float64 `json:"frame_p50"`
		FrameP95 float64 `json:"frame_p95"`
	}
	var r struct {
		Kernels     int64   `json:"kernels"`
		Lanes       int     `json:"lanes"`
		FirstPageMs float64 `json:"first_page_ms"`
		TimelineMs  float64 `json:"timeline_ms"`
		Zoom        motion  `json:"zoom"`
		Pan         motion  `json:"pan"`
		PanWhole    motion  `json:"pan whole"`
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return fmt.Errorf("frames.mjs: %w: %s", err, strings.TrimSpace(string(out)))
	}
	fmt.Printf("%d kernels on %d lanes: first page %.0f ms, timeline with data %.0f ms\n", r.Kernels, r.Lanes, r.FirstPageMs, r.TimelineMs)
	fmt.Println("motion        frames  paint p50/p95  frame p50/p95 (ms)")
	var slow []string
	for _, m := range []struct {
		name string
		motion
	}{{"zoom", r.Zoom}, {"pan", r.Pan}, {"pan, whole", r.PanWhole}} {
		fmt.Printf("%-12s %7d  %6.1f /%6.1f  %6.1f /%6.1f\n", m.name, m.Frames, m.PaintP50, m.PaintP95, m.FrameP50, m.FrameP95)
		if m.FrameP50 >= frameLimit {
			slow = append(slow, m.name)
		}
	}
	if len(slow) > 0 {
		return fmt.Errorf("frames of %s take %d ms or more in the median", strings.Join(slow, ", "), frameLimit)
	}
	if r.FirstPageMs >= pageLimit {
		return fmt.Errorf("the first page takes %.0f ms, not below %d ms", r.FirstPageMs, pageLimit)
	}
	return nil
}
