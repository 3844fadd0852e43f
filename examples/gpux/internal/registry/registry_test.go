// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bytes"
	"context"
	"crypto/sha1" // Git's name of a file
	"crypto/sha256"
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
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/config"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/onnx"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/tensor"
)

func TestMain(m *testing.M) {
	if child != nil {
		os.Exit(child())
	}
	goleak.VerifyTestMain(m)
}

// child is what this process does instead of running tests, if it is not nil.
var child func() int

// classifier is the file of a model that reads tokens of any number, of a size in bytes.
func classifier(size int) []byte {
	text := func(to []byte, number protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(to, number, protowire.BytesType), s)
	}
	varint := func(number protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), v)
	}
	value := func(name string, d tensor.DType, dims ...[]byte) []byte {
		var shape []byte
		for _, d := range dims {
			shape = text(shape, 1, string(d))
		}
		typed := text(varint(1, uint64(d)), 2, string(shape))
		return text(text(nil, 1, name), 2, string(text(nil, 1, string(typed))))
	}
	batch, sequence := text(nil, 2, "batch"), text(nil, 2, "sequence")
	graph := text(text(nil, 1, string(text(nil, 4, "Gather"))), 2, "classifier")
	for _, name := range []string{"input_ids", "attention_mask"} {
		graph = text(graph, 11, string(value(name, tensor.Int64, batch, sequence)))
	}
	graph = text(graph, 12, string(value("logits", tensor.Float32, batch, varint(1, 2))))
	m := text(varint(1, 8), 7, string(graph))
	return text(m, 6, strings.Repeat("x", size)) // the documentation
}

func digest(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }

// hub is Hugging Face with one model. It redirects large files to another server, as the real one does.
type hub struct {
	*httptest.Server
	cdn   *httptest.Server
	files map[string][]byte
	large map[string]bool
	list  func(text string) string // changes the answer about the files

	mutex    sync.Mutex
	requests []*http.Request
	// serve, if set, answers requests for files instead.
	serve func(w http.ResponseWriter, r *http.Request, data []byte) bool
}

func newHub(t *testing.T) *hub {
	h := &hub{files: map[string][]byte{
		"onnx/model.onnx": classifier(1 << 20), "onnx/model_fp16.onnx": classifier(10), "config.json": []byte(`{"id2label":{"0":"NEGATIVE","1":"POSITIVE"}}`),
		"tokenizer.json": []byte("{}"), "model.safetensors": []byte("large"), ".gitattributes": []byte("x"),
	}, large: map[string]bool{"onnx/model.onnx": true}}
	file := func(w http.ResponseWriter, r *http.Request, path string) {
		data, ok := h.files[path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		if h.serve != nil && h.serve(w, r, data) {
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}
	note := func(r *http.Request) {
		h.mutex.Lock()
		h.requests = append(h.requests, r)
		h.mutex.Unlock()
	}
	h.cdn = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		note(r)
		file(w, r, strings.TrimPrefix(r.URL.Path, "/blob/"))
	}))
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		note(r)
		if r.Header.Get("Authorization") != "Bearer hf_secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if r.URL.Path == "/api/models/org/sentiment/revision/main" && r.URL.RawQuery == "blobs=true" {
			_, _ = w.Write([]byte(h.listing()))
			return
		}
		path, ok := strings.CutPrefix(r.URL.Path, "/org/sentiment/resolve/0123456789abcdef/")
		switch {
		case !ok:
			http.NotFound(w, r)
		case h.large[path]:
			http.Redirect(w, r, h.cdn.URL+"/blob/"+path+"?Signature=signed_secret", http.StatusFound)
		default:
			file(w, r, path)
		}
	}))
	t.Cleanup(func() { h.Close(); h.cdn.Close() })
	t.Setenv("HF_ENDPOINT", h.URL+"/")
	t.Setenv("HF_TOKEN", "hf_secret")
	return h
}

func (h *hub) listing() string {
	siblings := []map[string]any{}
	for path, data := range h.files {
		s := map[string]any{"rfilename": path, "size": len(data), "blobId": fmt.Sprintf("%x", sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(data), data)))}
		if h.large[path] {
			s["lfs"] = map[string]any{"sha256": digest(data), "size": len(data), "pointerSize": 130}
		}
		siblings = append(siblings, s)
	}
	text, err := json.Marshal(map[string]any{"id": "org/sentiment", "sha": "0123456789abcdef", "siblings": siblings})
	if err != nil {
		panic(err)
	}
	if h.list != nil {
		return h.list(string(text))
	}
	return string(text)
}

func (h *hub) got(path string) (list []*http.Request) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	for _, r := range h.requests {
		if strings.HasSuffix(r.URL.Path, path) {
			list = append(list, r)
		}
	}
	return list
}

func open(t testing.TB, dir string) *Registry {
	t.Helper()
	r, err := New(dir)
	require.NoError(t, err)
	r.pause = time.Millisecond
	t.Cleanup(r.client.CloseIdleConnections)
	t.Cleanup(func() { r.client.Transport.(*authorized).next.(*http.Transport).CloseIdleConnections() })
	return r
}

// left returns the files of a registry, without locks.
func left(t testing.TB, r *Registry) (files []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(r.dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.Contains(path, locks) {
			files = append(files, path)
		}
		return err
	}))
	return files
}

func TestPull_HuggingFace(t *testing.T) {
	h := newHub(t)
	r := open(t, t.TempDir())
	var log []string
	e, changed, err := r.Pull(t.Context(), "org/sentiment", Options{Log: func(format string, args ...any) { log = append(log, fmt.Sprintf(format, args...)) }})
	require.NoError(t, err)
	assert.True(t, changed)
	t.Run("a tokenizer that gpux cannot use is told", func(t *testing.T) {
		assert.Regexp(t, `clients must send tensors, not texts: .*tokenizer`, log[len(log)-1])
	})
	t.Run("the files are those of the model, and of the commit", func(t *testing.T) {
		assert.Equal(t, "org/sentiment@main", e.Reference())
		assert.Equal(t, "0123456789abcdef", e.Commit)
		var names []string
		for _, f := range e.Files {
			names = append(names, f.Path)
			data, err := os.ReadFile(filepath.Join(e.Dir, f.Path))
			require.NoError(t, err)
			assert.Equal(t, digest(data), f.SHA256)
			if want, ok := h.files[f.Path]; ok {
				assert.Equal(t, want, data)
			}
		}
		assert.ElementsMatch(t, []string{"onnx/model.onnx", "config.json", "tokenizer.json", "gpux.yml"}, names)
	})
	t.Run("the gpux.yml has the types and dimensions of the model, and the labels", func(t *testing.T) {
		c, err := config.Read(e.Dir)
		require.NoError(t, err)
		assert.Equal(t, "sentiment", c.Name)
		assert.Equal(t, config.Ports{{Name: "input_ids", Type: "int64", Shape: []int64{-1, -1}}, {Name: "attention_mask", Type: "int64", Shape: []int64{-1, -1}}}, c.Inputs)
		assert.Equal(t, config.Ports{{Name: "logits", Type: "float32", Shape: []int64{-1, 2}, Labels: []string{"NEGATIVE", "POSITIVE"}}}, c.Outputs)
		m, err := onnx.ReadFile(c.ModelPath())
		require.NoError(t, err)
		require.NoError(t, c.Agree(m))
	})
	t.Run("the token goes to Hugging Face only", func(t *testing.T) {
		from := h.got("/blob/onnx/model.onnx")
		require.Len(t, from, 1)
		assert.Empty(t, from[0].Header.Get("Authorization"))
		assert.Equal(t, "Bearer hf_secret", h.got("resolve/0123456789abcdef/onnx/model.onnx")[0].Header.Get("Authorization"))
	})
	t.Run("no secret is written", func(t *testing.T) {
		for _, path := range left(t, r) {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.NotContains(t, string(text), "secret", path)
		}
	})
	t.Run("it is found by ID and by name", func(t *testing.T) {
		for _, name := range []string{"org/sentiment", "org/sentiment@main", "sentiment", "sentiment@main"} {
			got, err := r.Find(name)
			require.NoError(t, err, name)
			assert.Equal(t, e, got)
		}
		_, err := r.Find("sentiment@other")
		assert.ErrorIs(t, err, ErrNotFound)
	})
	t.Run("a second pull gets only the list", func(t *testing.T) {
		before := len(h.got(""))
		_, changed, err := r.Pull(t.Context(), "org/sentiment", Options{})
		require.NoError(t, err)
		assert.False(t, changed)
		assert.Len(t, h.got(""), before+1)
	})
	t.Run("a damaged file is replaced", func(t *testing.T) {
		require.NoError(t, os.WriteFile(filepath.Join(e.Dir, "tokenizer.json"), []byte("[]"), 0o600))
		again, changed, err := r.Pull(t.Context(), "org/sentiment", Options{})
		require.NoError(t, err)
		assert.True(t, changed)
		text, err := os.ReadFile(filepath.Join(again.Dir, "tokenizer.json"))
		require.NoError(t, err)
		assert.Equal(t, "{}", string(text))
		assert.NoDirExists(t, e.Dir)
	})
	t.Run("clients can send texts if the tokenizer is one that gpux has", func(t *testing.T) {
		h.files["tokenizer.json"] = []byte(`{"model":{"type":"WordPiece","unk_token":"?","continuing_subword_prefix":"##","max_input_chars_per_word":9,"vocab":{"?":0,"a":1,"[PAD]":2}},"pre_tokenizer":{"type":"BertPreTokenizer"}}`)
		e, _, err := r.Pull(t.Context(), "org/sentiment", Options{})
		require.NoError(t, err)
		c, err := config.Read(e.Dir)
		require.NoError(t, err)
		assert.Equal(t, "tokenizer.json", c.Preprocessing.Tokenizer)
	})
	t.Run("another file of the repository takes its place", func(t *testing.T) {
		e, _, err := r.Pull(t.Context(), "org/sentiment", Options{File: "onnx/model_fp16.onnx"})
		require.NoError(t, err)
		assert.FileExists(t, filepath.Join(e.Dir, "onnx", "model_fp16.onnx"))
		assert.NoFileExists(t, filepath.Join(e.Dir, "onnx", "model.onnx"))
	})
	t.Run("it is removed as a whole", func(t *testing.T) {
		_, err := r.Remove(t.Context(), "sentiment")
		require.NoError(t, err)
		assert.Empty(t, left(t, r))
		list, err := r.List()
		require.NoError(t, err)
		assert.Empty(t, list)
		_, err = r.Remove(t.Context(), "sentiment")
		assert.ErrorIs(t, err, ErrNotFound)
	})
}

func TestPull_HuggingFaceErrors(t *testing.T) {
	h := newHub(t)
	for name, c := range map[string]struct {
		id      string
		options Options
		list    func(string) string
		err     string
	}{
		"no such model":     {id: "org/none", err: "has no model org/none with the revision main, or it is private"},
		"no such revision":  {id: "org/sentiment", options: Options{Revision: "v9"}, err: "with the revision v9"},
		"a revision of ..":  {id: "org/sentiment", options: Options{Revision: "../../x"}, err: "cannot be a revision"},
		"an ID of ..":       {id: "org/..", err: "cannot be the name of a model"},
		"no such file":      {id: "org/sentiment", options: Options{File: "x.onnx"}, err: `there is no file "x.onnx"`},
		"another format":    {id: "org/sentiment", list: func(s string) string { return strings.ReplaceAll(s, ".onnx", ".bin") }, err: "there is no .onnx file"},
		"several models":    {id: "org/sentiment", list: func(s string) string { return strings.ReplaceAll(s, "onnx/model.onnx", "onnx/other.onnx") }, err: "name one with --file: "},
		"no list":           {id: "org/sentiment", list: func(string) string { return "<html>" }, err: "the list of files is no JSON object"},
		"no commit":         {id: "org/sentiment", list: func(s string) string { return strings.ReplaceAll(s, `"0123456789abcdef"`, `"../x"`) }, err: "the list of files has no commit"},
		"no digest":         {id: "org/sentiment", list: func(s string) string { return strings.ReplaceAll(s, `"sha256"`, `"x"`) }, err: "no size or digest"},
		"a wrong digest":    {id: "org/sentiment", list: func(s string) string { return strings.ReplaceAll(s, digest(h.files["onnx/model.onnx"]), digest(nil)) }, err: "and it must be " + digest(nil)},
		"a wrong Git hash":  {id: "org/sentiment", list: func(s string) string { return strings.ReplaceAll(s, `"blobId":"`, `"blobId":"f`) }, err: "has the Git hash"},
		"a wrong size":      {id: "org/sentiment", list: func(s string) string { return strings.ReplaceAll(s, `"size":2`, `"size":1`) }, err: "is larger than 1 B"},
		"a file that is ..": {id: "org/sentiment", options: Options{File: "../model.onnx"}, list: func(s string) string { return strings.ReplaceAll(s, "onnx/model.onnx", "../model.onnx") }, err: "there is no file"},
	} {
		t.Run(name, func(t *testing.T) {
			h.list = c.list
			r := open(t, t.TempDir())
			_, _, err := r.Pull(t.Context(), c.id, c.options)
			require.ErrorContains(t, err, c.err)
			assert.NotContains(t, err.Error(), "secret")
			_, err = r.Find("sentiment")
			require.ErrorIs(t, err, ErrNotFound)
		})
	}
	h.list = nil
	t.Run("an address without TLS", func(t *testing.T) {
		t.Setenv("HF_ENDPOINT", "http://192.0.2.1")
		_, err := New(t.TempDir())
		require.ErrorContains(t, err, "HF_ENDPOINT must begin with https://")
	})
	t.Run("the size of the model", func(t *testing.T) {
		r := open(t, t.TempDir())
		r.maxBytes = 1 << 20
		_, _, err := r.Pull(t.Context(), "org/sentiment", Options{})
		require.ErrorContains(t, err, "the model is larger than 1.05 MB")
	})
	t.Run("an address that cannot be reached", func(t *testing.T) {
		t.Setenv("HF_ENDPOINT", "http://127.0.0.1:1")
		_, _, err := open(t, t.TempDir()).Pull(t.Context(), "org/sentiment", Options{})
		require.ErrorContains(t, err, "connection refused")
		assert.NotContains(t, err.Error(), "secret")
	})
}

// A transfer that breaks goes on, in the same pull and in a later one.
func TestPull_Resumes(t *testing.T) {
	for _, ranges := range []bool{true, false} {
		t.Run(fmt.Sprintf("the server has ranges: %t", ranges), func(t *testing.T) {
			h := newHub(t)
			var answers atomic.Int64
			h.serve = func(w http.ResponseWriter, r *http.Request, data []byte) bool {
				if len(data) < 1<<20 {
					return false
				}
				n := answers.Add(1)
				if n > 4 && ranges || n > 1 && !ranges {
					if !ranges {
						r.Header.Del("Range")
					}
					return false
				}
				// The first transfer ends after 100,000 bytes, each of the next ones after as many more.
				start := 0
				if text := strings.TrimSuffix(strings.TrimPrefix(r.Header.Get("Range"), "bytes="), "-"); text != "" && ranges {
					var err error
					start, err = strconv.Atoi(text)
					assert.NoError(t, err)
					w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", start, len(data)-1, len(data)))
				}
				w.Header().Set("Content-Length", strconv.Itoa(len(data)-start))
				if start > 0 {
					w.WriteHeader(http.StatusPartialContent)
				}
				_, _ = w.Write(data[start : start+100_000])
				panic(http.ErrAbortHandler)
			}
			r := open(t, t.TempDir())
			e, _, err := r.Pull(t.Context(), "org/sentiment", Options{})
			require.NoError(t, err)
			data, err := os.ReadFile(filepath.Join(e.Dir, "onnx", "model.onnx"))
			require.NoError(t, err)
			assert.Equal(t, h.files["onnx/model.onnx"], data)
			last := h.got("/blob/onnx/model.onnx")
			if ranges {
				require.Len(t, last, 5)
				assert.Equal(t, "bytes=400000-", last[4].Header.Get("Range"))
			}
		})
	}
	t.Run("a later pull takes what is there", func(t *testing.T) {
		h := newHub(t)
		h.serve = func(w http.ResponseWriter, _ *http.Request, data []byte) bool {
			if len(data) < 1<<20 {
				return false
			}
			w.Header().Set("Content-Length", strconv.Itoa(len(data)))
			_, _ = w.Write(data[:300_000])
			panic(http.ErrAbortHandler)
		}
		r := open(t, t.TempDir())
		ctx, cancel := context.WithCancel(t.Context())
		r.pause = time.Hour
		go func() { // cancel in the pause
			defer cancel()
			for ctx.Err() == nil {
				if list, err := r.List(); err == nil && len(list) == 1 && list[0].Size() >= 300_000 {
					return
				}
				time.Sleep(time.Millisecond)
			}
		}()
		_, _, err := r.Pull(ctx, "org/sentiment", Options{})
		require.Error(t, err)
		list, err := r.List()
		require.NoError(t, err)
		require.Len(t, list, 1)
		assert.True(t, list[0].Incomplete)
		assert.GreaterOrEqual(t, list[0].Size(), int64(300_000))
		_, err = r.Find("org/sentiment")
		require.ErrorIs(t, err, ErrNotFound)

		h.serve = nil
		_, _, err = r.Pull(t.Context(), "org/sentiment", Options{})
		require.NoError(t, err)
		last := h.got("/blob/onnx/model.onnx")
		assert.Equal(t, "bytes=300000-", last[len(last)-1].Header.Get("Range"))
	})
	t.Run("what is there but wrong is fetched again", func(t *testing.T) {
		newHub(t)
		r := open(t, t.TempDir())
		partial := filepath.Join(r.dir, partials, "org%2Fsentiment@main", "onnx")
		require.NoError(t, os.MkdirAll(partial, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(partial, "model.onnx"), []byte("something else"), 0o600))
		_, _, err := r.Pull(t.Context(), "org/sentiment", Options{})
		require.NoError(t, err)
	})
	t.Run("an incomplete model is removed", func(t *testing.T) {
		r := open(t, t.TempDir())
		require.NoError(t, os.MkdirAll(filepath.Join(r.dir, partials, "org%2Fx@main"), 0o700))
		_, err := r.Remove(t.Context(), "org/x")
		require.NoError(t, err)
		list, err := r.List()
		require.NoError(t, err)
		assert.Empty(t, list)
	})
	t.Run("a transfer that stalls ends", func(t *testing.T) {
		h := newHub(t)
		end := make(chan struct{})
		defer close(end)
		h.serve = func(w http.ResponseWriter, _ *http.Request, data []byte) bool {
			w.Header().Set("Content-Length", strconv.Itoa(len(data)))
			_, _ = w.Write(data[:1])
			w.(http.Flusher).Flush()
			<-end
			return true
		}
		r := open(t, t.TempDir())
		r.stall = 20 * time.Millisecond
		_, _, err := r.Pull(t.Context(), "org/sentiment", Options{})
		require.ErrorContains(t, err, "the server sent nothing for 20ms")
		require.ErrorContains(t, err, "; pull again to go on")
	})
}

func TestPull_Address(t *testing.T) {
	model := classifier(100)
	files := map[string][]byte{"/resnet/model.onnx": model, "/m/net.onnx": model}
	var fetched atomic.Int64
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fetched.Add(1)
		data, ok := files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		assert.Empty(t, r.Header.Get("Authorization"))
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}))
	defer h.Close()
	t.Setenv("HF_TOKEN", "hf_secret")
	yml := "name: net\nversion: 2.1.0\nmodel: {source: net.onnx}\ninputs: {input_ids: int64, attention_mask: int64}\noutputs: {logits: float32}\nmetadata: {tokenizer: sub/tokens.json}\n"
	files["/m/gpux.yml"], files["/m/sub/tokens.json"], files["/m/README"] = []byte(yml), []byte("{}"), []byte("x")
	list := func(names ...string) (text string) {
		for _, name := range names {
			text += digest(files["/m/"+name]) + "  " + name + "\n"
		}
		return text
	}
	files["/m/"+sums] = []byte(list("gpux.yml", "net.onnx", "sub/tokens.json", "README"))
	t.Run("a file", func(t *testing.T) {
		r := open(t, t.TempDir())
		e, _, err := r.Pull(t.Context(), h.URL+"/resnet/model.onnx?token=secret", Options{SHA256: digest(model)})
		require.NoError(t, err)
		assert.Equal(t, "resnet@1.0.0", e.Reference())
		assert.Equal(t, h.URL+"/resnet/model.onnx", e.Source)
	})
	t.Run("a folder has what its gpux.yml names", func(t *testing.T) {
		r := open(t, t.TempDir())
		e, _, err := r.Pull(t.Context(), h.URL+"/m/", Options{})
		require.NoError(t, err)
		assert.Equal(t, "net@2.1.0", e.Reference())
		var names []string
		for _, f := range e.Files {
			names = append(names, f.Path)
		}
		assert.ElementsMatch(t, []string{"gpux.yml", "net.onnx", "sub/tokens.json"}, names)
		t.Run("and is not fetched again", func(t *testing.T) {
			before := fetched.Load()
			_, changed, err := r.Pull(t.Context(), h.URL+"/m", Options{SHA256: digest(files["/m/"+sums])})
			require.NoError(t, err)
			assert.False(t, changed)
			assert.Equal(t, before+2, fetched.Load(), "SHA256SUMS and gpux.yml")
		})
		t.Run("and its name is taken", func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "gpux.yml"), []byte(yml), 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "net.onnx"), model, 0o600))
			_, _, err := r.Pull(t.Context(), dir, Options{})
			require.ErrorContains(t, err, "net@2.1.0 is in the registry already, from "+h.URL+"/m;")
		})
	})
	for name, c := range map[string]struct {
		address, sums, yml, sha256, err string
	}{
		"another digest":                 {address: "/m/net.onnx", sha256: digest(nil), err: "and it must be"},
		"no digest":                      {address: "/m/net.onnx", sha256: "1234", err: "is no SHA-256"},
		"nothing":                        {address: "/none/x.onnx", err: "404 Not Found"},
		"no SHA256SUMS":                  {address: "/none", err: "or of a folder with a SHA256SUMS"},
		"another SHA256SUMS":             {address: "/m", sha256: digest(nil), err: "SHA256SUMS: it has the SHA-256"},
		"a SHA256SUMS of something else": {address: "/m", sums: "hello", err: "line 1 is no digest and file"},
		"a path that leads out":          {address: "/m", sums: digest(nil) + "  ../../x.onnx\n", err: `line 1: "../../x.onnx" cannot be the path`},
		"an absolute path":               {address: "/m", sums: digest(nil) + " */etc/passwd\n", err: "cannot be the path"},
		"a path of Windows":              {address: "/m", sums: digest(nil) + "  ..\\x.onnx\n", err: "cannot be the path"},
		"a hidden file":                  {address: "/m", sums: digest(nil) + "  a/.ssh/x.onnx\n", err: "it is hidden"},
		"our own file":                   {address: "/m", sums: digest(nil) + "  pulled.json\n", err: "cannot be the path"},
		"a file twice":                   {address: "/m", sums: list("gpux.yml", "net.onnx", "net.onnx"), err: "is listed twice"},
		"a model that is not listed":     {address: "/m", sums: list("gpux.yml"), err: `there is no file "net.onnx"`},
		"a source that leads out":        {address: "/m", yml: strings.ReplaceAll(yml, "net.onnx", "../net.onnx"), err: "leads out of the folder"},
		"an absolute source":             {address: "/m", yml: strings.ReplaceAll(yml, "net.onnx", "/etc/passwd"), err: "leads out of the folder"},
		"variables of the environment":   {address: "/m", yml: yml + "description: ${HF_TOKEN}\n", err: "must not read variables of the environment"},
		"an unknown key":                 {address: "/m", yml: yml + "letterbox: true\n", err: "line 7: there is no key letterbox"},
		"inputs of another model":        {address: "/m", yml: strings.ReplaceAll(yml, "input_ids: int64", "input_ids: float32"), err: `the input "input_ids" is declared as float32`},
		"a tokenizer that leads out":     {address: "/m", yml: yml + "preprocessing: {tokenizer: ../tokens.json}\n", err: "preprocessing.tokenizer \"../tokens.json\" leads out of the folder"},
		"a name with other characters":   {address: "/m", yml: strings.ReplaceAll(yml, "name: net", "name: a@b"), err: "cannot be the name of a model"},
		"no host":                        {address: "https:///x.onnx", err: "the address is not valid"},
		"no TLS":                         {address: "http://192.0.2.1/x.onnx", err: "use https, or give its digest"},
		"no TLS, with a password":        {address: "http://user:secret@192.0.2.1/x.onnx", err: "http://192.0.2.1/x.onnx could be changed"},
	} {
		t.Run(name, func(t *testing.T) {
			before, beforeYML := files["/m/"+sums], files["/m/gpux.yml"]
			defer func() { files["/m/"+sums], files["/m/gpux.yml"] = before, beforeYML }()
			if c.yml != "" {
				files["/m/gpux.yml"] = []byte(c.yml)
				files["/m/"+sums] = []byte(list("gpux.yml", "net.onnx"))
			}
			if c.sums != "" {
				files["/m/"+sums] = []byte(c.sums)
			}
			address := c.address
			if strings.HasPrefix(address, "/") {
				address = h.URL + address
			}
			r := open(t, t.TempDir())
			_, _, err := r.Pull(t.Context(), address, Options{SHA256: c.sha256})
			require.ErrorContains(t, err, c.err)
			assert.NotContains(t, err.Error(), "secret")
			for _, path := range left(t, r) {
				assert.Contains(t, path, partials, "nothing that looks like a model")
			}
		})
	}
	t.Run("a body without an end", func(t *testing.T) {
		endless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		}))
		defer endless.Close()
		r := open(t, t.TempDir())
		r.maxBytes = 1 << 20
		_, _, err := r.Pull(t.Context(), endless.URL+"/x.onnx", Options{})
		require.ErrorContains(t, err, "x.onnx is larger than 1.05 MB")
		assert.Empty(t, left(t, r))
	})
	t.Run("no model", func(t *testing.T) {
		files["/m/cut.onnx"] = model[:50]
		r := open(t, t.TempDir())
		_, _, err := r.Pull(t.Context(), h.URL+"/m/cut.onnx", Options{})
		require.ErrorContains(t, err, "cut.onnx: this is no ONNX model")
		assert.Empty(t, left(t, r))
	})
	t.Run("a redirect from https to http", func(t *testing.T) {
		secure := httptest.NewTLSServer(http.RedirectHandler(h.URL+"/m/net.onnx?token=secret", http.StatusFound))
		defer secure.Close()
		r := open(t, t.TempDir())
		r.client.Transport.(*authorized).next = secure.Client().Transport
		_, _, err := r.Pull(t.Context(), secure.URL+"/net.onnx", Options{})
		require.ErrorContains(t, err, "redirects from https to http")
		assert.NotContains(t, err.Error(), "secret")
	})
}

func TestPull_Folder(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "net.onnx"), classifier(10), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "net.onnx.data"), []byte("weights"), 0o600))
	r := open(t, t.TempDir())
	t.Run("with data beside the model", func(t *testing.T) {
		e, changed, err := r.Pull(t.Context(), dir, Options{})
		require.NoError(t, err)
		assert.True(t, changed)
		assert.FileExists(t, filepath.Join(e.Dir, "net.onnx.data"))
		_, changed, err = r.Pull(t.Context(), dir, Options{})
		require.NoError(t, err)
		assert.False(t, changed)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "net.onnx.data"), []byte("others"), 0o600))
		e, changed, err = r.Pull(t.Context(), dir, Options{})
		require.NoError(t, err)
		assert.True(t, changed)
		text, err := os.ReadFile(filepath.Join(e.Dir, "net.onnx.data"))
		require.NoError(t, err)
		assert.Equal(t, "others", string(text))
	})
	t.Run("with another name of the model", func(t *testing.T) {
		other := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(other, "net.bin"), classifier(10), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(other, "gpux.yml"), []byte("name: bin\nmodel: {source: ./net.bin}\ninputs: {input_ids: int64, attention_mask: int64}\noutputs: {logits: float32}\n"), 0o600))
		e, _, err := r.Pull(t.Context(), other, Options{})
		require.NoError(t, err)
		assert.FileExists(t, filepath.Join(e.Dir, "net.bin"))
	})
	t.Run("with a SHA256SUMS that does not fit", func(t *testing.T) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, sums), []byte(digest(nil)+"  net.onnx\n"), 0o600))
		_, _, err := r.Pull(t.Context(), dir, Options{})
		require.ErrorContains(t, err, "net.onnx has the SHA-256")
	})
	t.Run("with a link that leads out", func(t *testing.T) {
		other := t.TempDir()
		require.NoError(t, os.Symlink(filepath.Join(dir, "net.onnx"), filepath.Join(other, "net.onnx")))
		_, _, err := r.Pull(t.Context(), other, Options{})
		require.ErrorContains(t, err, "path escapes from parent")
	})
	for name, from := range map[string]string{"a file": filepath.Join(dir, "net.onnx"), "nothing": filepath.Join(dir, "none"), "no model": t.TempDir()} {
		t.Run(name, func(t *testing.T) {
			_, _, err := r.Pull(t.Context(), from, Options{})
			require.Error(t, err)
		})
	}
}

func TestPull_SameTime(t *testing.T) {
	h := newHub(t)
	dir := t.TempDir()
	t.Run("one of several pulls downloads", func(t *testing.T) {
		var all sync.WaitGroup
		var changes atomic.Int64
		for range 8 {
			r := open(t, dir) // as in another process
			all.Go(func() {
				_, changed, err := r.Pull(t.Context(), "org/sentiment", Options{})
				assert.NoError(t, err)
				if changed {
					changes.Add(1)
				}
			})
		}
		all.Wait()
		assert.Equal(t, int64(1), changes.Load())
		assert.Len(t, h.got("/blob/onnx/model.onnx"), 1)
	})
	t.Run("a model is whole while it is replaced", func(t *testing.T) {
		r := open(t, dir)
		end := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
				}
				e, err := r.Find("sentiment")
				if !assert.NoError(t, err) {
					return
				}
				_, err = config.Read(e.Dir)
				if errors.Is(err, os.ErrNotExist) {
					continue // a newer one is there now
				}
				assert.NoError(t, err)
			}
		})
		for i := range 5 {
			h.files["tokenizer.json"] = fmt.Appendf(nil, "[%d]", i)
			_, changed, err := r.Pull(t.Context(), "org/sentiment", Options{})
			require.NoError(t, err)
			assert.True(t, changed)
		}
		close(end)
		all.Wait()
	})
}

func TestFind_Revisions(t *testing.T) {
	r := open(t, t.TempDir())
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "net.onnx"), classifier(10), 0o600))
	for _, version := range []string{"1.0.0", "2.0.0"} {
		yml := "name: net\nversion: " + version + "\nmodel: {source: net.onnx}\ninputs: {input_ids: int64, attention_mask: int64}\noutputs: {logits: float32}\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, "gpux.yml"), []byte(yml), 0o600))
		_, _, err := r.Pull(t.Context(), dir, Options{})
		require.NoError(t, err)
	}
	_, err := r.Find("net")
	require.ErrorContains(t, err, "net can be net@1.0.0 or net@2.0.0: name one of them")
	_, err = r.Remove(t.Context(), "net")
	require.ErrorContains(t, err, "name one of them")
	_, err = r.Remove(t.Context(), "net@1.0.0")
	require.NoError(t, err)
	e, err := r.Find("net")
	require.NoError(t, err)
	assert.Equal(t, "2.0.0", e.Revision)
	t.Run("a folder that is no model does not hide the others", func(t *testing.T) {
		require.NoError(t, os.MkdirAll(filepath.Join(r.dir, "other"), 0o700))
		list, err := r.List()
		require.ErrorContains(t, err, "other")
		assert.Len(t, list, 1)
	})
}

func FuzzSums(f *testing.F) {
	f.Add([]byte(digest(nil) + "  a/b.onnx\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		files, err := parseSums(text)
		if err != nil {
			return
		}
		for _, file := range files {
			require.NoError(t, checkPath(file.Path))
			require.True(t, filepath.IsLocal(file.Path))
		}
	})
}

func FuzzListing(f *testing.F) {
	f.Add([]byte(`{"sha":"a","siblings":[{"rfilename":"model.onnx","size":1,"blobId":"b"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		_, files, err := parseListing(text)
		if err != nil {
			return
		}
		for _, file := range files {
			require.True(t, filepath.IsLocal(file.Path) && file.Size >= 0)
		}
		_, _, _ = (&source{files: files}).choose(t.Context(), "x")
	})
}
