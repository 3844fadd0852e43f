// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"bytes"
	"embed"
	"hash/fnv"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzip"
)

//go:embed all:ui
var uiFiles embed.FS

type asset struct {
	contentType, etag string
	plain, gzip       []byte // gzip is nil if it is not smaller
}

// assets serves the files of the UI. A path without a file extension gets the index, because the UI
// has routes of its own.
type assets map[string]*asset

func newAssets() assets {
	root := "ui/dist"
	if _, err := fs.Stat(uiFiles, root+"/index.html"); err != nil {
		root = "ui/notbuilt"
	}
	a := assets{}
	_ = fs.WalkDir(uiFiles, root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := uiFiles.ReadFile(name)
		if err == nil {
			a[strings.TrimPrefix(name, root)] = newAsset(name, body)
		}
		return err
	})
	return a
}

func newAsset(name string, body []byte) *asset {
	hash := fnv.New64a()
	_, _ = hash.Write(body)
	f := &asset{contentType: contentType(name), etag: `"` + strconv.FormatUint(hash.Sum64(), 16) + `"`, plain: body}
	var buf bytes.Buffer
	z, _ := gzip.NewWriterLevel(&buf, gzip.BestCompression)
	_, _ = z.Write(body)
	_ = z.Close()
	if buf.Len() < len(body) {
		f.gzip = buf.Bytes()
	}
	return f
}

// contentType does not depend on the tables of the machine for the files that the UI has.
func contentType(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	case ".woff2":
		return "font/woff2"
	case ".json":
		return "application/json"
	}
	if t := mime.TypeByExtension(path.Ext(name)); t != "" {
		return t
	}
	return "application/octet-stream"
}

func (a assets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		writeError(w, http.StatusMethodNotAllowed, "the UI supports GET and HEAD only")
		return
	}
	f := a[r.URL.Path]
	if f == nil && (path.Ext(r.URL.Path) == "" || !strings.HasPrefix(r.URL.Path, "/assets/")) {
		f = a["/index.html"]
	}
	if f == nil {
		writeError(w, http.StatusNotFound, "the UI has no such file")
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.contentType)
	h.Set("ETag", f.etag)
	h.Set("Cache-Control", "no-cache")
	h.Add("Vary", "Accept-Encoding")
	if r.Header.Get("If-None-Match") == f.etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body := f.plain
	if f.gzip != nil && acceptsGzip(r) {
		h.Set("Content-Encoding", "gzip")
		body = f.gzip
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if r.Method == http.MethodGet {
		_, _ = w.Write(body)
	}
}
