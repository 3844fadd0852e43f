// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"bufio"
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// s3Server is as much of S3 as listing, reading and writing objects take, with the bucket in the path.
type s3Server struct {
	*httptest.Server

	mu      sync.Mutex
	objects map[string][]byte // by bucket/key
	// pageSize is the most keys of one listing, 1000 if 0.
	pageSize int
	// cutAfter ends each answer with an object after that many bytes, if it is above 0.
	cutAfter      int
	gets, listing int
	denied        map[string]bool
}

func startS3(t *testing.T) *s3Server {
	s := &s3Server{objects: map[string][]byte{}, denied: map[string]bool{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	t.Setenv("AWS_ENDPOINT_URL", s.URL)
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("AWS_REGION", "us-east-1")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_CONFIG_FILE", "/dev/null")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
	return s
}

func (s *s3Server) put(name string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[name] = data
}

func etag(data []byte) string {
	sum := md5.Sum(data)
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

func s3Error(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>this is %s</Message></Error>", code, code)
}

func (s *s3Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/")
	switch {
	case r.Method == http.MethodGet && r.URL.Query().Get("list-type") == "2":
		s.list(w, r, strings.TrimSuffix(name, "/"))
	case r.Method == http.MethodGet:
		s.get(w, r, name)
	case r.Method == http.MethodPut:
		body, err := s3Body(r)
		if err != nil {
			s3Error(w, http.StatusBadRequest, "BadDigest")
			return
		}
		s.put(name, body)
		w.Header().Set("ETag", etag(body))
	default:
		s3Error(w, http.StatusNotImplemented, "NotImplemented")
	}
}

// s3Body undoes the chunks with signatures that the SDK may send.
func s3Body(r *http.Request) ([]byte, error) {
	if !strings.Contains(r.Header.Get("Content-Encoding"), "aws-chunked") {
		return io.ReadAll(r.Body)
	}
	in := bufio.NewReader(r.Body)
	var body bytes.Buffer
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		size, _, _ := strings.Cut(strings.TrimSpace(line), ";")
		n, err := strconv.ParseInt(size, 16, 64)
		if err != nil || n == 0 {
			return body.Bytes(), err
		}
		if _, err := io.CopyN(&body, in, n); err != nil {
			return nil, err
		}
		if _, err := in.ReadString('\n'); err != nil {
			return nil, err
		}
	}
}

func (s *s3Server) list(w http.ResponseWriter, r *http.Request, bucket string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listing++
	type contents struct {
		Key  string
		Size int
		ETag string
	}
	page := struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		IsTruncated           bool
		NextContinuationToken string `xml:",omitempty"`
		Contents              []contents
	}{}
	size := s.pageSize
	if size == 0 {
		size = 1000
	}
	found := false
	for _, name := range slices.Sorted(maps.Keys(s.objects)) {
		of, key, _ := strings.Cut(name, "/")
		found = found || of == bucket
		if of != bucket || !strings.HasPrefix(key, r.URL.Query().Get("prefix")) || key <= r.URL.Query().Get("continuation-token") {
			continue
		}
		if len(page.Contents) == size {
			page.IsTruncated, page.NextContinuationToken = true, page.Contents[size-1].Key
			break
		}
		page.Contents = append(page.Contents, contents{key, len(s.objects[name]), etag(s.objects[name])})
	}
	if !found {
		s3Error(w, http.StatusNotFound, "NoSuchBucket")
		return
	}
	w.Header().Set("Content-Type", "application/xml")
	_ = xml.NewEncoder(w).Encode(page)
}

func (s *s3Server) get(w http.ResponseWriter, r *http.Request, name string) {
	s.mu.Lock()
	data, ok := s.objects[name]
	s.gets++
	cut, denied := s.cutAfter, s.denied[name]
	s.mu.Unlock()
	switch match := r.Header.Get("If-Match"); {
	case denied:
		s3Error(w, http.StatusForbidden, "AccessDenied")
		return
	case !ok:
		s3Error(w, http.StatusNotFound, "NoSuchKey")
		return
	case match != "" && match != etag(data):
		s3Error(w, http.StatusPreconditionFailed, "PreconditionFailed")
		return
	}
	from := 0
	if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from); err == nil {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(data)-1, len(data)))
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(data)-from))
	w.Header().Set("ETag", etag(data))
	if from > 0 {
		w.WriteHeader(http.StatusPartialContent)
	}
	rest := data[from:]
	if cut > 0 && len(rest) > cut {
		_, _ = w.Write(rest[:cut])
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(rest)
}

func source(t *testing.T, name string) Source {
	t.Helper()
	s, err := NewSource(t.Context(), name)
	require.NoError(t, err)
	if b, ok := s.(*bucket); ok {
		b.pause = 0
	}
	return s
}
