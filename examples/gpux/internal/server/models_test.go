// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/engine"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/orttest"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/server"
)

func encode(t *testing.T, value any) []byte {
	t.Helper()
	text, err := json.Marshal(value)
	require.NoError(t, err)
	return text
}

func TestTexts(t *testing.T) {
	h := serveModels(t, nil, served(t, orttest.Languages()))
	want := orttest.ReadExpectedTexts(t)
	type answer struct {
		Language    []string
		Probability [][]float32
	}
	t.Run("all in one request", func(t *testing.T) {
		code, text, _ := call(t, http.MethodPost, h.URL+"/predict", encode(t, map[string]any{"text": want.Text}))
		require.Equal(t, 200, code, string(text))
		var got answer
		require.NoError(t, json.Unmarshal(text, &got))
		assert.Equal(t, want.Language, got.Language)
		for i := range want.Text {
			require.InDeltaSlice(t, want.Probability[i], got.Probability[i], 1e-5, want.Text[i])
		}
	})
	t.Run("one by one", func(t *testing.T) {
		for i, s := range want.Text {
			code, text, _ := call(t, http.MethodPost, h.URL+"/predict", encode(t, map[string]any{"text": s}))
			require.Equal(t, 200, code, string(text))
			var got answer
			require.NoError(t, json.Unmarshal(text, &got))
			require.InDeltaSlice(t, want.Probability[i], got.Probability[0], 1e-5, s)
		}
	})
	t.Run("as token ids", func(t *testing.T) {
		mask := make([]int, len(want.IDs[0]))
		for i := range mask {
			mask[i] = 1
		}
		code, text, _ := call(t, http.MethodPost, h.URL+"/predict", encode(t, map[string]any{"input_ids": want.IDs[:1], "attention_mask": [][]int{mask}}))
		require.Equal(t, 200, code, string(text))
		var got answer
		require.NoError(t, json.Unmarshal(text, &got))
		assert.InDeltaSlice(t, want.Probability[0], got.Probability[0], 1e-5)
	})
	url := h.URL + "/v2/models/languages/infer"
	t.Run("in the protocol", func(t *testing.T) {
		request := map[string]any{"inputs": []any{map[string]any{"name": "text", "shape": []int{2}, "datatype": "BYTES", "data": want.Text[:2]}}, "outputs": []any{map[string]any{"name": "language"}}}
		code, text, _ := call(t, http.MethodPost, url, encode(t, request))
		require.Equal(t, 200, code, string(text))
		assert.Contains(t, string(text), fmt.Sprintf(`"shape":[2],"datatype":"BYTES","data":[%q,%q]`, want.Language[0], want.Language[1]))
	})
	binaryText := func(text string) (int, []byte) {
		raw := append(binary.LittleEndian.AppendUint32(nil, uint32(len(text))), text...)
		header := fmt.Sprintf(`{"inputs":[{"name":"text","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":%d}}]}`, len(raw))
		code, answer, _ := call(t, http.MethodPost, url, append([]byte(header), raw...), "Inference-Header-Content-Length", strconv.Itoa(len(header)))
		return code, answer
	}
	t.Run("in binary", func(t *testing.T) {
		code, text := binaryText(want.Text[0])
		require.Equal(t, 200, code, string(text))
		assert.Contains(t, string(text), fmt.Sprintf(`"data":[%q]`, want.Language[0]))
		code, text = binaryText("Gr\xfc\xdfe")
		assert.Equal(t, 400, code)
		assert.Contains(t, string(text), "the input 'text': text 1: the text is not UTF-8 at byte 2")
	})
	for name, c := range map[string]struct{ body, err string }{
		"a number":            {`{"text":1}`, "Invalid input type for 'text': at byte 0: 1 is no string"},
		"no text":             {`{"text":[]}`, "there is no text"},
		"a long text":         {`{"text":"` + strings.Repeat("a", 1<<20+1) + `"}`, "text 1 has 1048577 bytes, and the limit is 1048576"},
		"text and ids":        {`{"text":"a","input_ids":[[1]]}`, "the input 'input_ids' is there, and text gives it too"},
		"another input":       {`{"text":"a","image":1}`, "the model has no input 'image'"},
		"an image":            {"\x89PNG\r\n\x1a\n", "the body is an image, and gpux.yml has no preprocessing of images"},
		"the ids alone":       {`{"input_ids":[[1]]}`, "Missing required input: 'attention_mask'"},
		"nothing":             {`{}`, "Missing required input: 'text'"},
		"an input named \"\"": {`{"text":"a","":"b"}`, "the model has no input ''"},
	} {
		t.Run(name, func(t *testing.T) {
			code, text, _ := call(t, http.MethodPost, h.URL+"/predict", []byte(c.body))
			assert.Equal(t, 400, code)
			assert.Contains(t, string(text), c.err)
		})
	}
	t.Run("nothing in the protocol", func(t *testing.T) {
		code, text, _ := call(t, http.MethodPost, url, []byte(`{"text":"a"}`))
		assert.Equal(t, 400, code)
		assert.Contains(t, string(text), "Missing required input: 'text'")
	})
	t.Run("its metadata and its description ask for text", func(t *testing.T) {
		_, text, _ := call(t, http.MethodGet, h.URL+"/v2/models/languages", nil)
		assert.Contains(t, string(text), `"inputs":[{"name":"text","shape":[-1],"datatype":"BYTES"}]`)
		_, text, _ = call(t, http.MethodGet, h.URL+"/openapi.json", nil)
		assert.Contains(t, string(text), `"required":["text"]`)
	})
}

func TestImages(t *testing.T) {
	h := digits(t)
	file, err := os.ReadFile(filepath.Join(orttest.Digits(), "two.png"))
	require.NoError(t, err)
	coded := base64.StdEncoding.EncodeToString(file)
	for name, c := range map[string]struct {
		path string
		body []byte
		code int
		part string
	}{
		"the file":                      {"/predict", file, 200, `"digit":[2]`},
		"base64":                        {"/predict", encode(t, map[string]any{"image": coded}), 200, `"digit":[2]`},
		"two":                           {"/predict", encode(t, map[string]any{"image": []string{coded, coded}}), 200, `"digit":[2,2]`},
		"the protocol":                  {"/v2/models/digits/infer", encode(t, map[string]any{"inputs": []any{map[string]any{"name": "image", "shape": []int{1}, "datatype": "BYTES", "data": []string{coded}}}}), 200, `"data":[2]`},
		"no base64":                     {"/predict", encode(t, map[string]any{"image": "?"}), 400, "the input 'image': image 1: it is no PNG or JPEG file, nor one in base64"},
		"a file that is cut off":        {"/predict", file[:40], 400, "image 1: unexpected EOF"},
		"text":                          {"/predict", []byte(`{"text":"two"}`), 400, "Missing required input: 'image'"},
		"no image in the protocol":      {"/v2/models/digits/infer", []byte(`{"inputs":[{"name":"image","shape":[0],"datatype":"BYTES","data":[]}]}`), 400, "there is no image"},
		"an input of another data type": {"/v2/models/digits/infer", []byte(`{"inputs":[{"name":"image","shape":[1],"datatype":"INT8","data":[1]}]}`), 400, "is int8, and the model needs float32"},
	} {
		t.Run(name, func(t *testing.T) {
			code, text, _ := call(t, http.MethodPost, h.URL+c.path, c.body)
			assert.Equal(t, c.code, code, string(text))
			assert.Contains(t, string(text), c.part)
		})
	}
}

func TestTrace_Preprocess(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)))
	defer otel.SetTracerProvider(before)
	h := serveModels(t, nil, served(t, orttest.Languages()))
	code, _, _ := call(t, http.MethodPost, h.URL+"/predict", []byte(`{"text":"a"}`))
	require.Equal(t, 200, code)
	named := spansNamed(t, spans, 4)
	request := named["POST /predict"]
	assert.Contains(t, request.Attributes, attribute.String("gpux.model.name", "languages"))
	for _, name := range []string{"preprocess", "queue", "session.run"} {
		assert.Equal(t, request.SpanContext.SpanID(), named[name].Parent.SpanID(), name)
	}
}

func TestModels(t *testing.T) {
	first, one := slowModel(t, "1", "{max_workers: 1, queue: 1, timeout: 60}")
	second, two := slowModel(t, "2", "{timeout: 60}")
	h := serveModels(t, nil, one, two, served(t, orttest.Languages()))
	close(second.may)
	for name, c := range map[string]struct {
		method, path, body string
		code               int
		part               string
	}{
		"the index":                  {"POST", "/v2/repository/index", "", 200, `[{"name":"slow","version":"1","state":"READY","reason":""},{"name":"slow","version":"2","state":"READY","reason":""},{"name":"languages"`},
		"a model":                    {"GET", "/v2/models/slow", "", 200, `"versions":["1","2"]`},
		"a version":                  {"GET", "/v2/models/slow/versions/2/ready", "", 200, `{"name":"slow","ready":true}`},
		"no such model":              {"GET", "/v2/models/slo", "", 404, "there is no model 'slo'; there is slow, languages"},
		"no such version":            {"POST", "/v2/models/slow/versions/3/infer", "{}", 404, "the model 'slow' has no version '3'; it has 1, 2"},
		"health":                     {"GET", "/health", "", 200, `"models":["slow","languages"]`},
		"no name":                    {"POST", "/predict", "{}", 400, "the server has several models: add ?model=NAME"},
		"a name":                     {"POST", "/predict?model=languages", `{"text":"Guten Tag"}`, 200, `"language":["de"]`},
		"an unknown name":            {"POST", "/predict?model=x", "{}", 404, "there is no model 'x'"},
		"a name and a version":       {"POST", "/predict?model=slow&version=2", `{"x":[1]}`, 200, `{"y":[2]}`},
		"what a model is":            {"GET", "/info?model=languages", "", 200, `"accepts":["text"]`},
		"what no model is":           {"GET", "/info", "", 400, "add ?model=NAME"},
		"where a model runs":         {"GET", "/metrics?model=languages", "", 200, `"provider"`},
		"a description of all":       {"GET", "/openapi.json", "", 200, `"enum":["slow","languages"]`},
		"a version of the protocol":  {"POST", "/v2/models/slow/versions/2/infer", `{"inputs":[{"name":"x","shape":[1],"datatype":"UINT8","data":[1]}]}`, 200, `"model_version":"2"`},
		"the input of another model": {"POST", "/predict?model=slow&version=2", `{"text":"a"}`, 400, "Missing required input: 'x'"},
	} {
		t.Run(name, func(t *testing.T) {
			code, text, _ := call(t, c.method, h.URL+c.path, []byte(c.body))
			assert.Equal(t, c.code, code, string(text))
			assert.Contains(t, string(text), c.part)
		})
	}
	t.Run("a full queue of one does not stop another", func(t *testing.T) {
		var all sync.WaitGroup
		metric := func(line string) bool {
			_, text, _ := call(t, "GET", h.URL+"/metrics", nil, "Accept", "text/plain")
			return strings.Contains(string(text), line+"\n")
		}
		for i := range 2 { // the second one waits, after the worker took the first
			all.Go(func() {
				code, _, _ := call(t, "POST", h.URL+"/v2/models/slow/versions/1/infer", []byte(`{"inputs":[{"name":"x","shape":[1],"datatype":"UINT8","data":[1]}]}`))
				assert.Equal(t, 200, code)
			})
			require.Eventually(t, func() bool {
				return first.running.Load() == 1 && metric(fmt.Sprintf(`gpux_queue_requests{model="slow",version="1"} %d`, i))
			}, 30*time.Second, time.Millisecond)
		}
		code, _, _ := call(t, "POST", h.URL+"/predict?model=slow", []byte(`{"x":[1]}`))
		assert.Equal(t, 429, code, "the first version is the one without a version")
		code, _, _ = call(t, "POST", h.URL+"/predict?model=slow&version=2", []byte(`{"x":[1]}`))
		assert.Equal(t, 200, code)
		close(first.may)
		all.Wait()
		assert.True(t, metric(`gpux_requests_total{code="429",model="slow",version="1"} 1`))
	})
	t.Run("a version that is there twice", func(t *testing.T) {
		_, again := slowModel(t, "2", "{}")
		_, err := server.New(server.Options{Models: []server.Served{two, again}})
		require.EqualError(t, err, "the version 2 of the model slow is there twice: set model.version in one gpux.yml")
	})
}

func TestWarmUp(t *testing.T) {
	m, o := slowModel(t, "1", "{batch_size: 6}")
	warnings := []string{}
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	s, err := server.New(server.Options{Models: []server.Served{o}, Warn: warn})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	ready := func() bool {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v2/models/slow/ready", nil))
		return w.Code == 200
	}
	require.True(t, ready())
	var warming sync.WaitGroup
	warming.Go(func() { s.WarmUp(t.Context()) })
	require.Eventually(t, func() bool { return m.running.Load() == 1 }, 30*time.Second, time.Millisecond)
	assert.False(t, ready())
	close(m.may)
	warming.Wait()
	assert.True(t, ready())
	assert.Equal(t, []int64{1, 2, 4, 6}, m.rows)
	assert.Empty(t, warnings)
	t.Run("a model that fails is ready nevertheless", func(t *testing.T) {
		o.Model = failing{}
		s, err := server.New(server.Options{Models: []server.Served{o}, Warn: warn})
		require.NoError(t, err)
		t.Cleanup(s.Close)
		s.WarmUp(t.Context())
		assert.Equal(t, []string{"the model slow could not be warmed up: no zeros"}, warnings)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v2/health/ready", nil))
		assert.Equal(t, 200, w.Code)
	})
}

type failing struct{}

func (failing) Run(context.Context, engine.Tensors) (engine.Tensors, error) {
	return nil, errors.New("no zeros")
}
