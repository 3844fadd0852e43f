// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/config"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/engine"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/onnx"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/server"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/tensor"
)

// echo is a model that returns its inputs.
type echo struct{}

func (echo) Run(_ context.Context, values engine.Tensors) (engine.Tensors, error) { return values, nil }

// echoServer serves a model with an input and output of each of some types.
func echoServer(t testing.TB, o server.Options) *server.Server {
	t.Helper()
	info := &onnx.Model{}
	yml := "name: echo\nmodel: {source: m.onnx}\nserving: {max_workers: 1, timeout: 60}\ninputs: {"
	for _, d := range []tensor.DType{tensor.Float32, tensor.Int8, tensor.Bool, tensor.String, tensor.Float16} {
		info.Inputs = append(info.Inputs, onnx.Value{Name: d.String(), Kind: "tensor", DType: d, Ranked: true, Dims: []onnx.Dim{{Size: -1}}})
		yml += d.String() + ": " + d.String() + ", "
	}
	info.Outputs = info.Inputs
	c, err := config.Parse([]byte(yml + "}\noutputs: {int8: int8}\n"))
	require.NoError(t, err)
	o.Models = []server.Served{{Config: c, Model: echo{}, Info: info}}
	s, err := server.New(o)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// connection is a client that writes its request by hand.
func connection(t *testing.T, address, head string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	_, err = io.WriteString(c, head)
	require.NoError(t, err)
	return c
}

// answer reads the status and the detail of an answer, or an error.
func answer(c net.Conn) (code int, detail string) {
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second)) // a closed connection fails below
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	var d struct{ Detail string }
	if err := json.NewDecoder(resp.Body).Decode(&d); err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, d.Detail
}

// serve serves on a port until the test ends.
func serve(t *testing.T, o server.Options) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := echoServer(t, o)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, listener, 10*time.Second) }()
	t.Cleanup(func() { stop(); assert.NoError(t, <-served) })
	return listener.Addr().String()
}

const (
	valid = `{"float32":[1],"int8":[1],"bool":[true],"string":["a"],"float16":[1]}`
	// head announces a body that never ends.
	head = "POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n"
)

func TestSlowClients(t *testing.T) {
	address := serve(t, server.Options{ReadTimeout: 2 * time.Second})
	var slow []net.Conn
	for range 20 {
		slow = append(slow, connection(t, address, head+"{"))
	}
	code, text, _ := call(t, http.MethodPost, "http://"+address+"/predict", []byte(valid))
	assert.Equal(t, 200, code, string(text), "they do not hold up others")
	for _, c := range slow {
		code, detail := answer(c)
		assert.Equal(t, 408, code)
		assert.Equal(t, "the body did not arrive in time", detail)
	}
}

func TestManyBodies(t *testing.T) {
	address := serve(t, server.Options{MaxBodies: 1 << 20})
	first := connection(t, address, head+strings.Repeat(" ", 899_999))
	second := connection(t, address, head+strings.Repeat(" ", 899_999))
	type result struct {
		code   int
		detail string
	}
	refused := make(chan result, 2)
	for _, c := range []net.Conn{first, second} {
		go func() {
			code, detail := answer(c)
			refused <- result{code, detail}
		}()
	}
	assert.Equal(t, result{503, "the bodies of all requests together are too large now"}, <-refused, "one of them is refused")
	for _, c := range []net.Conn{first, second} {
		_, _ = io.WriteString(c, " ") // the end of the other one, which is no JSON; the refused one may be closed
	}
	assert.Equal(t, 400, (<-refused).code)
	code, text, _ := call(t, http.MethodPost, "http://"+address+"/predict", []byte(strings.Repeat(" ", 900_000)+valid))
	assert.Equal(t, 200, code, string(text), "the memory is free again")
}

// A request of the protocol gives an answer or a clear error, whatever it contains. What is returned
// is what was sent.
func FuzzInfer(f *testing.F) {
	s := echoServer(f, server.Options{})
	f.Add("", []byte(`{"inputs":[{"name":"int8","shape":[1],"datatype":"INT8","data":[1]}]}`))
	header := `{"parameters":{"binary_data_output":true},"inputs":[` +
		`{"name":"float32","shape":[1],"datatype":"FP32","data":[1]},{"name":"int8","shape":[2],"datatype":"INT8","parameters":{"binary_data_size":2}},` +
		`{"name":"bool","shape":[1],"datatype":"BOOL","data":[true]},{"name":"string","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":5}},` +
		`{"name":"float16","shape":[1],"datatype":"FP16","parameters":{"binary_data_size":2}}]}`
	f.Add(strconv.Itoa(len(header)), []byte(header+"\x01\x02\x01\x00\x00\x00a\x00\x3c"))
	f.Fuzz(func(t *testing.T, length string, body []byte) {
		r := httptest.NewRequest(http.MethodPost, "/v2/models/echo/infer", strings.NewReader(string(body)))
		if length != "" {
			r.Header.Set("Inference-Header-Content-Length", length)
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		out := w.Body.Bytes()
		if n, err := strconv.Atoi(w.Header().Get("Inference-Header-Content-Length")); err == nil {
			out = out[:n]
		}
		var got struct {
			Error   string
			Outputs []struct {
				Shape      []int64
				DataType   string
				Parameters struct {
					Size int64 `json:"binary_data_size"`
				}
				Data []any
			}
		}
		require.NoError(t, json.Unmarshal(out, &got), "%q", out)
		switch w.Code {
		case 200:
			for _, o := range got.Outputs {
				require.Len(t, o.Shape, 1)
				if size := map[string]int64{"FP32": 4, "INT8": 1, "BOOL": 1, "FP16": 2}[o.DataType]; o.Data == nil && size > 0 {
					require.Equal(t, o.Shape[0]*size, o.Parameters.Size)
				} else if o.Data != nil {
					require.Len(t, o.Data, int(o.Shape[0]))
				}
			}
		case 400:
			require.NotEmpty(t, got.Error)
		default:
			t.Fatalf("%d %s", w.Code, out)
		}
	})
}

// Binary tensors that lie about their sizes are refused before anything is allocated for them.
func TestInfer_MalformedTensors(t *testing.T) {
	s := echoServer(t, server.Options{})
	for name, c := range map[string]struct{ kind, shape, rest, err string }{
		"too few bytes":                {"FP32", "[2]", "1234", "it has 4 bytes, and [2] of float32 needs 8"},
		"too many bytes":               {"INT8", "[1]", "12", "it has 2 bytes, and [1] of int8 needs 1"},
		"a bool of 2":                  {"BOOL", "[1]", "\x02", "byte 0 is 2, and a bool is 0 or 1"},
		"a string that is cut off":     {"BYTES", "[1]", "\xff\xff\xff\xffa", "string 0 is cut off"},
		"fewer strings than the shape": {"BYTES", "[1000000]", "\x01\x00\x00\x00a", "it has 1 strings, and [1000000] needs 1000000"},
		"a shape of 2^60":              {"INT8", "[1152921504606846976]", "1", "more than 268435456 elements"},
		"a shape with a fraction":      {"INT8", "[1.5]", "1", "the request is no JSON object of the protocol"},
		"a type that is no type":       {"COMPLEX", "[1]", "1", `"COMPLEX" is no data type of the protocol`},
		"a type of another input":      {"FP64", "[1]", "12345678", `the input "int8" is float64, and the model needs int8`},
		"another rank":                 {"INT8", "[1,1]", "1", "the shape [1 1], and the model needs [?]"},
	} {
		t.Run(name, func(t *testing.T) {
			list := ""
			for _, d := range []string{"float32 FP32", "bool BOOL", "string BYTES", "float16 FP16"} {
				name, kind, _ := strings.Cut(d, " ")
				list += fmt.Sprintf(`,{"name":%q,"shape":[0],"datatype":%q,"data":[]}`, name, kind)
			}
			header := fmt.Sprintf(`{"inputs":[{"name":"int8","shape":%s,"datatype":%q,"parameters":{"binary_data_size":%d}}%s]}`, c.shape, c.kind, len(c.rest), list)
			r := httptest.NewRequest(http.MethodPost, "/v2/models/echo/infer", strings.NewReader(header+c.rest))
			r.Header.Set("Inference-Header-Content-Length", strconv.Itoa(len(header)))
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			assert.Equal(t, 400, w.Code)
			assert.Contains(t, w.Body.String(), strings.ReplaceAll(c.err, `"`, `\"`))
		})
	}
	t.Run("each byte of a request can be missing", func(t *testing.T) {
		header := `{"inputs":[{"name":"int8","shape":[2],"datatype":"INT8","parameters":{"binary_data_size":2}}]}`
		whole := header + string(binary.LittleEndian.AppendUint16(nil, 513))
		for n := range len(whole) {
			r := httptest.NewRequest(http.MethodPost, "/v2/models/echo/infer", strings.NewReader(whole[:n]))
			r.Header.Set("Inference-Header-Content-Length", strconv.Itoa(len(header)))
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			require.Equal(t, 400, w.Code, whole[:n])
		}
	})
}
