// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/config"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/engine"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/onnx"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/orttest"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/preprocess"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/server"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// served opens a model of the repository.
func served(t *testing.T, dir string) server.Served {
	t.Helper()
	orttest.Open(t)
	c, err := config.Read(dir)
	require.NoError(t, err)
	c.Serving.Timeout = config.Duration(time.Minute) // for busy machines
	m, err := engine.Load(c.ModelPath(), engine.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Close()) })
	p, err := preprocess.New(c, m.Info)
	require.NoError(t, err)
	return server.Served{Config: c, Info: m.Info, Model: m, Selection: m.Selection, Preprocessor: p}
}

// serveModels serves models.
func serveModels(t *testing.T, keys []string, models ...server.Served) *httptest.Server {
	t.Helper()
	s, err := server.New(server.Options{Models: models, Runtime: engine.Version(), Keys: keys})
	require.NoError(t, err)
	h := httptest.NewServer(s)
	t.Cleanup(func() {
		h.Close()
		s.Close()
	})
	return h
}

// digits serves the real model for images.
func digits(t *testing.T, keys ...string) *httptest.Server {
	t.Helper()
	return serveModels(t, keys, served(t, orttest.Digits()))
}

// call sends a request and returns the status and the body.
func call(t testing.TB, method, url string, body []byte, headers ...string) (int, []byte, http.Header) {
	t.Helper()
	r, err := http.NewRequest(method, url, bytes.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, text, resp.Header
}

func TestPredict(t *testing.T) {
	h := digits(t)
	want := orttest.ReadExpected(t)
	all, err := json.Marshal(map[string]any{"image": want.Image})
	require.NoError(t, err)
	t.Run("the outputs are those of the framework", func(t *testing.T) {
		code, text, _ := call(t, http.MethodPost, h.URL+"/predict", all)
		require.Equal(t, 200, code, string(text))
		var got struct {
			Logits [][]float32
			Digit  []int64
		}
		require.NoError(t, json.Unmarshal(text, &got))
		for i := range want.Logits {
			require.InDeltaSlice(t, want.Logits[i], got.Logits[i], 1e-5)
		}
	})
	for name, c := range map[string]struct {
		body string
		code int
		err  string
	}{
		"no JSON":               {"{", 400, "the body is no JSON object"},
		"a list":                {"[]", 400, "the body is no JSON object"},
		"a missing input":       {"{}", 400, "Missing required input: 'image'"},
		"a wrong type":          {`{"image":[[["x"]]]}`, 400, "Invalid input type for 'image': at byte 6: a string is no float32"},
		"a wrong shape":         {`{"image":[1,2,3]}`, 400, "the shape [3] does not fit [?, 1, 8, 8]"},
		"an input of no model":  {`{"image":` + strings.Repeat("[", 4) + strings.TrimSuffix(strings.Repeat(strings.TrimSuffix(strings.Repeat("0,", 8), ",")+"],[", 8), ",[") + `]]],"x":1}`, 400, "the model has no input 'x'"},
		"too deep":              {`{"image":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `}`, 400, "nested more than 32 deep"},
		"a body that is larger": {`{"image":[` + strings.Repeat("0,", 33<<20) + `0]}`, 413, "the body is larger than 64 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			code, text, _ := call(t, http.MethodPost, h.URL+"/predict", []byte(c.body))
			assert.Equal(t, c.code, code)
			var detail struct{ Detail string }
			require.NoError(t, json.Unmarshal(text, &detail), string(text))
			assert.Contains(t, detail.Detail, c.err)
		})
	}
	t.Run("other routes", func(t *testing.T) {
		for path, part := range map[string]string{
			"/health": `"status":"healthy"`, "/info": `"shape":["batch",1,8,8]`, "/metrics": `"name":"cpu"`,
			"/openapi.json": `"required":["image"]`, "/v2": `"binary_tensor_data"`, "/v2/health/live": "true", "/v2/health/ready": "true",
			"/v2/models/digits/ready": "true", "/v2/models/digits/versions/1.0.0": `"datatype":"FP32"`,
		} {
			code, text, _ := call(t, http.MethodGet, h.URL+path, nil)
			assert.Equal(t, 200, code, path)
			assert.Contains(t, string(text), part, path)
		}
		code, _, _ := call(t, http.MethodGet, h.URL+"/v2/models/other", nil)
		assert.Equal(t, 404, code)
		code, _, _ = call(t, http.MethodGet, h.URL+"/predict", nil)
		assert.Equal(t, 405, code)
	})
	t.Run("metrics count by status", func(t *testing.T) {
		_, text, _ := call(t, http.MethodGet, h.URL+"/metrics", nil, "Accept", "text/plain")
		assert.Contains(t, string(text), `gpux_requests_total{code="400",model="digits",version="1.0.0"} 7`)
		assert.Contains(t, string(text), `gpux_requests_total{code="200",model="digits",version="1.0.0"} 1`)
	})
}

func TestInfer(t *testing.T) {
	h := digits(t)
	want := orttest.ReadExpected(t)
	var raw []byte
	var flat []float32
	for _, row := range want.Image[0][0] {
		for _, v := range row {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
			flat = append(flat, v)
		}
	}
	url := h.URL + "/v2/models/digits/infer"
	t.Run("JSON", func(t *testing.T) {
		body, err := json.Marshal(map[string]any{"id": "7", "inputs": []any{map[string]any{"name": "image", "shape": []int{1, 1, 8, 8}, "datatype": "FP32", "data": flat}}, "outputs": []any{map[string]string{"name": "logits"}}})
		require.NoError(t, err)
		code, text, _ := call(t, http.MethodPost, url, body)
		require.Equal(t, 200, code, string(text))
		var got struct {
			ID        string
			ModelName string `json:"model_name"`
			Outputs   []struct {
				Name, DataType string
				Shape          []int
				Data           []float32
			}
		}
		require.NoError(t, json.Unmarshal(text, &got))
		assert.Equal(t, "7", got.ID)
		assert.Equal(t, "digits", got.ModelName)
		require.Len(t, got.Outputs, 1)
		assert.Equal(t, []int{1, 10}, got.Outputs[0].Shape)
		assert.InDeltaSlice(t, want.Logits[0], got.Outputs[0].Data, 1e-5)
	})
	t.Run("binary in and out", func(t *testing.T) {
		header := fmt.Sprintf(`{"parameters":{"binary_data_output":true},"inputs":[{"name":"image","shape":[1,1,8,8],"datatype":"FP32","parameters":{"binary_data_size":%d}}],"outputs":[{"name":"digit","parameters":{"binary_data":false}},{"name":"logits"}]}`, len(raw))
		code, text, headers := call(t, http.MethodPost, url, append([]byte(header), raw...), "Inference-Header-Content-Length", strconv.Itoa(len(header)))
		require.Equal(t, 200, code, string(text))
		n, err := strconv.Atoi(headers.Get("Inference-Header-Content-Length"))
		require.NoError(t, err)
		assert.Contains(t, string(text[:n]), `"name":"digit","shape":[1],"datatype":"INT64","data":[2]`)
		require.Len(t, text[n:], 40)
		for i, v := range want.Logits[0] {
			assert.InDelta(t, v, math.Float32frombits(binary.LittleEndian.Uint32(text[n+4*i:])), 1e-5)
		}
	})
	for name, c := range map[string]struct{ body, length, err string }{
		"no JSON":             {"x", "", "no JSON object"},
		"a wrong type":        {`{"inputs":[{"name":"image","shape":[1],"datatype":"FP31","data":[1]}]}`, "", `"FP31" is no data type`},
		"another type":        {`{"inputs":[{"name":"image","shape":[1],"datatype":"INT8","data":[1]}]}`, "", "is int8, and the model needs float32"},
		"too few elements":    {`{"inputs":[{"name":"image","shape":[1,1,8,8],"datatype":"FP32","data":[1]}]}`, "", "has 1 elements, and its shape [1 1 8 8] needs 64"},
		"a negative shape":    {`{"inputs":[{"name":"image","shape":[-1],"datatype":"FP32","data":[1]}]}`, "", "negative dimension"},
		"a huge shape":        {`{"inputs":[{"name":"image","shape":[4294967296,4294967296],"datatype":"FP32","data":[1]}]}`, "", "more than 268435456 elements"},
		"no bytes":            {`{"inputs":[{"name":"image","shape":[1,1,8,8],"datatype":"FP32","parameters":{"binary_data_size":256}}]}`, "96", "has 256 binary bytes"},
		"a wrong length":      {`{}`, "5", "the body has 2 bytes"},
		"bytes that are left": {`{"inputs":[]}abc`, "13", "3 bytes follow the binary tensors"},
		"no such output":      {`{"inputs":[{"name":"image","shape":[0,1,8,8],"datatype":"FP32","data":[]}],"outputs":[{"name":"z"}]}`, "", "no output 'z'"},
		"no input":            {`{"inputs":[]}`, "", `Missing required input: 'image'`},
	} {
		t.Run(name, func(t *testing.T) {
			headers := []string{}
			if c.length != "" {
				if c.length == "96" {
					c.length = strconv.Itoa(len(c.body))
				}
				headers = []string{"Inference-Header-Content-Length", c.length}
			}
			code, text, _ := call(t, http.MethodPost, url, []byte(c.body), headers...)
			assert.Equal(t, 400, code, string(text))
			var got struct{ Error string }
			require.NoError(t, json.Unmarshal(text, &got))
			assert.Contains(t, got.Error, c.err)
		})
	}
}

func TestKey(t *testing.T) {
	h := digits(t, "older", "secret")
	for name, c := range map[string]struct {
		header string
		code   int
	}{
		"no key": {"", 401}, "a wrong key": {"Bearer secre", 401}, "another scheme": {"Basic secret", 401}, "the key": {"Bearer secret", 400}, "another key": {"Bearer older", 400}, "both keys": {"Bearer older,secret", 401},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, _ := call(t, http.MethodPost, h.URL+"/predict", []byte("{}"), "Authorization", c.header)
			assert.Equal(t, c.code, code)
		})
	}
}

// slow is a model that adds 1 to each element. It waits until it may run, or until its context ends.
type slow struct {
	may     chan struct{}
	running atomic.Int64
	rows    []int64
	mutex   sync.Mutex
}

func (s *slow) Run(ctx context.Context, values engine.Tensors) (engine.Tensors, error) {
	x := values["x"]
	s.mutex.Lock()
	s.rows = append(s.rows, x.Shape[0])
	s.mutex.Unlock()
	s.running.Add(1)
	select {
	case <-s.may:
	case <-ctx.Done():
		return nil, engine.ErrTimeout
	}
	y := &tensor.Tensor{DType: x.DType, Shape: x.Shape, Data: bytes.Clone(x.Data)}
	for i := range y.Data {
		y.Data[i]++
	}
	return engine.Tensors{"y": y}, nil
}

func slowServer(t *testing.T, serving string) (*slow, *server.Server) {
	t.Helper()
	m, o := slowModel(t, "1.0.0", serving)
	s, err := server.New(server.Options{Models: []server.Served{o}})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return m, s
}

func slowModel(t *testing.T, version, serving string) (*slow, server.Served) {
	t.Helper()
	c, err := config.Parse([]byte("name: slow\nversion: " + version + "\nmodel: {source: m.onnx}\ninputs: {x: uint8}\noutputs: {y: uint8}\nserving: " + serving))
	require.NoError(t, err)
	port := func(name string) []onnx.Value {
		return []onnx.Value{{Name: name, Kind: "tensor", DType: tensor.Uint8, Ranked: true, Dims: []onnx.Dim{{Size: -1, Name: "n"}}}}
	}
	m := &slow{may: make(chan struct{})}
	return m, server.Served{Config: c, Model: m, Info: &onnx.Model{Inputs: port("x"), Outputs: port("y")}}
}

// post sends a request in the process.
func post(ctx context.Context, s *server.Server, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/predict", strings.NewReader(body)).WithContext(ctx))
	return w
}

func TestBatches(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(provider)
	defer otel.SetTracerProvider(before)
	m, s := slowServer(t, "{batch_size: 6, max_workers: 1, timeout: 60}")
	answers := make([]*httptest.ResponseRecorder, 6)
	var all sync.WaitGroup
	send := func(i int, body string) {
		all.Go(func() { answers[i] = post(t.Context(), s, body) })
	}
	send(0, `{"x":[0]}`)
	require.Eventually(t, func() bool { return m.running.Load() == 1 }, 30*time.Second, time.Millisecond, "an idle server runs at once")
	for i, body := range []string{`{"x":[10,11]}`, `{"x":[20]}`, `{"x":[30,31,32]}`, `{"x":[40,41]}`, `{"x":[50]}`} {
		send(i+1, body)
		require.Eventually(t, func() bool { return waiting(t, s) == i+1 }, 30*time.Second, time.Millisecond)
	}
	close(m.may)
	all.Wait()
	t.Run("each request has its own rows", func(t *testing.T) {
		for i, want := range []string{`{"y":[1]}`, `{"y":[11,12]}`, `{"y":[21]}`, `{"y":[31,32,33]}`, `{"y":[41,42]}`, `{"y":[51]}`} {
			assert.Equal(t, 200, answers[i].Code)
			assert.Equal(t, want, strings.TrimSpace(answers[i].Body.String()))
		}
	})
	t.Run("what waited ran together, up to the limit", func(t *testing.T) { assert.Equal(t, []int64{1, 6, 3}, m.rows) })
	t.Run("a batch and its requests are linked", func(t *testing.T) {
		batches, waits := map[string]tracetest.SpanStub{}, 0
		for _, span := range spans.GetSpans() {
			if span.Name == "batch" {
				batches[span.SpanContext.SpanID().String()] = span
				assert.False(t, span.Parent.IsValid())
			}
		}
		require.Len(t, batches, 2)
		for _, span := range spans.GetSpans() {
			if span.Name != "queue" || len(span.Links) == 0 {
				continue
			}
			waits++
			batch, ok := batches[span.Links[0].SpanContext.SpanID().String()]
			require.True(t, ok)
			back := 0
			for _, link := range batch.Links {
				if link.SpanContext.SpanID() == span.Parent.SpanID() {
					back++
				}
			}
			assert.Equal(t, 1, back)
		}
		assert.Equal(t, 5, waits)
	})
}

// waiting returns the number of requests in the queue.
func waiting(t *testing.T, s *server.Server) (n int) {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", "text/plain")
	s.ServeHTTP(w, r)
	for line := range strings.SplitSeq(w.Body.String(), "\n") {
		if value, ok := strings.CutPrefix(line, `gpux_queue_requests{model="slow",version="1.0.0"} `); ok {
			var err error
			n, err = strconv.Atoi(value)
			require.NoError(t, err)
		}
	}
	return n
}

func TestLimits(t *testing.T) {
	t.Run("a full queue refuses, and /health answers meanwhile", func(t *testing.T) {
		m, s := slowServer(t, "{max_workers: 1, queue: 1, timeout: 60}")
		var all sync.WaitGroup
		for i := range 2 { // the second one waits, after the worker took the first
			all.Go(func() { assert.Equal(t, 200, post(t.Context(), s, `{"x":[1]}`).Code) })
			require.Eventually(t, func() bool { return m.running.Load() == 1 && waiting(t, s) == i }, 30*time.Second, time.Millisecond)
		}
		w := post(t.Context(), s, `{"x":[1]}`)
		assert.Equal(t, 429, w.Code)
		assert.Equal(t, "1", w.Header().Get("Retry-After"))
		health := httptest.NewRecorder()
		s.ServeHTTP(health, httptest.NewRequest(http.MethodGet, "/health", nil))
		assert.Equal(t, 200, health.Code)
		close(m.may)
		all.Wait()
	})
	t.Run("a request that takes too long ends, and its run too", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m, s := slowServer(t, "{max_workers: 1, timeout: 0.02}")
			w := post(t.Context(), s, `{"x":[1]}`)
			assert.Equal(t, 504, w.Code)
			close(m.may)
			assert.Equal(t, 200, post(t.Context(), s, `{"x":[1]}`).Code, "the worker is free again")
		})
	})
	t.Run("a batch goes on without one of its clients, and ends without all", func(t *testing.T) {
		m, s := slowServer(t, "{max_workers: 1, batch_size: 8, timeout: 60}")
		first, cancelFirst := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { post(first, s, `{"x":[1]}`) })
		require.Eventually(t, func() bool { return m.running.Load() == 1 }, 30*time.Second, time.Millisecond)
		a, cancelA := context.WithCancel(t.Context())
		b, cancelB := context.WithCancel(t.Context())
		all.Go(func() { post(a, s, `{"x":[2]}`) })
		all.Go(func() { post(b, s, `{"x":[3]}`) })
		require.Eventually(t, func() bool { return waiting(t, s) == 2 }, 30*time.Second, time.Millisecond)
		cancelFirst() // ends the first run; the batch of the others begins
		require.Eventually(t, func() bool { return m.running.Load() == 2 }, 30*time.Second, time.Millisecond)
		cancelA()
		cancelB()
		all.Wait()
		close(m.may)
		assert.Equal(t, 200, post(t.Context(), s, `{"x":[1]}`).Code)
		assert.Equal(t, []int64{1, 2, 1}, m.rows)
	})
}

func TestStop(t *testing.T) {
	m, s := slowServer(t, "{max_workers: 1, timeout: 60}")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, listener, time.Minute) }()
	url := "http://" + listener.Addr().String()
	var all sync.WaitGroup
	codes := make([]int, 8)
	for i := range codes {
		all.Go(func() { codes[i], _, _ = call(t, http.MethodPost, url+"/predict", []byte(`{"x":[1]}`)) })
	}
	require.Eventually(t, func() bool { return m.running.Load() == 1 && waiting(t, s) == 7 }, 30*time.Second, time.Millisecond)
	stop()
	require.Eventually(t, func() bool {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v2/health/ready", nil))
		return w.Code == 503
	}, 30*time.Second, time.Millisecond, "it is not ready while it stops")
	close(m.may)
	all.Wait()
	require.NoError(t, <-served)
	for _, code := range codes {
		assert.Equal(t, 200, code, "accepted requests are answered")
	}
	assert.Equal(t, 503, post(t.Context(), s, `{"x":[1]}`).Code)
}

// spansNamed waits for spans with n names, and returns the last span of each.
func spansNamed(t *testing.T, spans *tracetest.InMemoryExporter, n int) map[string]tracetest.SpanStub {
	t.Helper()
	named := map[string]tracetest.SpanStub{}
	require.Eventually(t, func() bool {
		for _, span := range spans.GetSpans() {
			named[span.Name] = span
		}
		return len(named) == n
	}, 30*time.Second, time.Millisecond)
	return named
}

// The client's trace goes on to the queue.
func TestTrace(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	before, propagator := otel.GetTracerProvider(), otel.GetTextMapPropagator()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)))
	otel.SetTextMapPropagator(propagation.TraceContext{})
	defer func() { otel.SetTracerProvider(before); otel.SetTextMapPropagator(propagator) }()
	h := digits(t)
	body, err := json.Marshal(map[string]any{"image": orttest.ReadExpected(t).Image[:1]})
	require.NoError(t, err)
	code, _, _ := call(t, http.MethodPost, h.URL+"/predict", body, "traceparent", "00-0102030405060708090a0b0c0d0e0f10-0102030405060708-01")
	require.Equal(t, 200, code)
	named := spansNamed(t, spans, 3)
	request := named["POST /predict"]
	for _, span := range named {
		assert.Equal(t, "0102030405060708090a0b0c0d0e0f10", span.SpanContext.TraceID().String())
	}
	assert.Equal(t, "0102030405060708", request.Parent.SpanID().String())
	assert.Equal(t, request.SpanContext.SpanID(), named["queue"].Parent.SpanID())
	assert.Equal(t, request.SpanContext.SpanID(), named["session.run"].Parent.SpanID())
	_, text, _ := call(t, http.MethodGet, h.URL+"/metrics", nil, "Accept", "application/openmetrics-text")
	assert.Contains(t, string(text), `trace_id="0102030405060708090a0b0c0d0e0f10"`)
}

// Whatever the body is, its inputs fit the model or there is an error.
func FuzzInputs(f *testing.F) {
	type prepared struct {
		info *onnx.Model
		p    *preprocess.Preprocessor
	}
	var models []prepared
	for _, dir := range []string{orttest.Digits(), orttest.Languages()} {
		c, err := config.Read(dir)
		require.NoError(f, err)
		m, err := onnx.ReadFile(c.ModelPath())
		require.NoError(f, err)
		p, err := preprocess.New(c, m)
		require.NoError(f, err)
		models = append(models, prepared{m, p})
	}
	file, err := os.ReadFile(filepath.Join(orttest.Digits(), "two.png"))
	require.NoError(f, err)
	for _, seed := range []string{`{"image":[[[[0]]]]}`, `{"image":["` + base64.StdEncoding.EncodeToString(file) + `"]}`, string(file), `{"text":["a","b \u0000"]}`, `{"input_ids":[[1]],"attention_mask":[[1]]}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		for _, m := range models {
			if values, err := server.Inputs(t.Context(), m.info, m.p, []byte(body)); err == nil {
				assert.Len(t, values, len(m.info.Inputs))
			}
		}
	})
}
