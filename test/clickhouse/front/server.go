// SPDX-License-Identifier: Apache-2.0

//go:build linux

package front

import (
	"cmp"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// maxBody limits a request's body in bytes, before and after decompression. Exporters send some MB.
const maxBody = 256 << 20

// ClickHouse's codes for errors of this server.
const (
	badArguments     = 36
	tooManyBytes     = 307
	wrongCredentials = 516
)

// Server serves ClickHouse's HTTP interface for an [Engine]. Set its fields before Listen. Its
// methods are safe for concurrent use.
type Server struct {
	// Engine runs the statements. Server does not close it.
	Engine *Engine
	// User and Password are the required credentials; "" is ClickHouse's user "default".
	User, Password string

	mu      sync.Mutex
	http    *http.Server
	done    chan struct{}
	address string

	inserts, refused, silent atomic.Int64
}

// Listen starts the server on a loopback address. "" selects the previous address, or a free port.
func (s *Server) Listen(address string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.http != nil {
		return errors.New("the server already listens")
	}
	l, err := net.Listen("tcp", cmp.Or(address, s.address, "127.0.0.1:0"))
	if err != nil {
		return err
	}
	s.address = l.Addr().String()
	s.http, s.done = &http.Server{Handler: s}, make(chan struct{})
	go func(server *http.Server, done chan struct{}) {
		defer close(done)
		_ = server.Serve(l) // ErrServerClosed, by Close
	}(s.http, s.done)
	return nil
}

// URL returns the address in the form of the exporter's endpoint.
func (s *Server) URL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return "http://" + s.address
}

// Close closes all connections and stops listening. Listen starts the server again.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.http == nil {
		return nil
	}
	err := s.http.Close()
	<-s.done
	s.http = nil
	return err
}

// Inserts returns the number of completed INSERTs.
func (s *Server) Inserts() int64 { return s.inserts.Load() }

// Refused returns the number of requests answered with an error.
func (s *Server) Refused() int64 { return s.refused.Load() }

// LoseAnswers makes the next n INSERTs run without an answer: the server closes their connections,
// and the sender must retry.
func (s *Server) LoseAnswers(n int64) { s.silent.Store(n) }

// Unanswered returns how many INSERTs are still to be left without an answer.
func (s *Server) Unanswered() int64 { return max(0, s.silent.Load()) }

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/ping" && r.Method == http.MethodGet {
		_, _ = io.WriteString(w, "Ok.\n") // an error means that the caller has disconnected
		return
	}
	parameters := r.URL.Query()
	answer, insert, err := s.answer(r, parameters)
	status := http.StatusOK
	if exception := (*Exception)(nil); errors.As(err, &exception) {
		status, answer = http.StatusInternalServerError, []byte(exception.Message)
		if exception.Code == wrongCredentials {
			status = http.StatusForbidden
		}
		w.Header().Set("X-ClickHouse-Exception-Code", strconv.Itoa(exception.Code))
	} else if err != nil {
		// The engine or the caller is no longer there.
		status, answer = http.StatusServiceUnavailable, []byte(err.Error())
	}
	if err != nil {
		s.refused.Add(1)
	} else if insert {
		s.inserts.Add(1)
		if s.silent.Add(-1) >= 0 {
			panic(http.ErrAbortHandler) // net/http closes the connection
		}
	}
	if parameters.Get("compress") == "1" {
		packed, err := compressed(answer)
		if err != nil {
			status, packed = http.StatusInternalServerError, nil
		}
		answer = packed
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	w.WriteHeader(status)
	_, _ = w.Write(answer) // as above
}

// Parameters of the server itself; all others are settings.
var notSettings = map[string]bool{
	"query": true, "database": true, "default_format": true, "client_protocol_version": true,
	"compress": true, "decompress": true, "query_id": true, "quota_key": true,
}

var (
	isInsert = regexp.MustCompile(`(?i)^\s*INSERT\s`)
	// endsInFormat matches the FORMAT clause at the end of a statement.
	endsInFormat = regexp.MustCompile(`(?i)\sFORMAT\s+(\w+)\s*;?\s*$`)
)

// answer runs the statement of a request; insert reports an INSERT.
func (s *Server) answer(r *http.Request, parameters url.Values) (out []byte, insert bool, err error) {
	if !s.known(r) {
		return nil, false, refusal(wrongCredentials, "Authentication failed: password is incorrect, or there is no user with such name.")
	}
	body, err := read(r, parameters.Get("decompress") == "1")
	if err != nil {
		return nil, false, err
	}
	statement := Statement{
		Database: parameters.Get("database"), Settings: map[string]string{}, Parameters: map[string]string{},
	}
	for name, values := range parameters {
		if parameter, ok := strings.CutPrefix(name, "param_"); ok {
			statement.Parameters[parameter] = values[0]
		} else if !notSettings[name] {
			statement.Settings[name] = values[0]
		}
	}
	sql, data := parameters.Get("query"), body
	if sql == "" {
		sql, data = string(body), nil
	}
	format := cmp.Or(parameters.Get("default_format"), "TabSeparated")
	named := endsInFormat.FindStringSubmatchIndex(sql)
	if named != nil {
		format = sql[named[2]:named[3]]
	}
	statement.SQL, statement.Format = sql, format
	// The statement continues if the caller disconnects, as in a real server.
	ctx := context.WithoutCancel(r.Context())
	if len(data) > 0 {
		if !isInsert.MatchString(sql) || named == nil {
			return nil, false, refusal(badArguments, "there are data, but the statement is no INSERT that names their format")
		}
		statement.SQL, statement.Insert = sql[:named[0]], true
		_, err := s.Engine.Run(ctx, statement, data)
		return nil, true, err
	}
	out, err = s.Engine.Run(ctx, statement, nil)
	if err != nil || format != "Native" {
		return out, false, err
	}
	revision, err := strconv.ParseUint(cmp.Or(parameters.Get("client_protocol_version"), "0"), 10, 32)
	if err != nil {
		return nil, false, refusal(badArguments, "client_protocol_version: %v", err)
	}
	if revision > 0 {
		out, err = atRevision(out, revision)
	}
	return out, false, err
}

// known reports whether a request has the right credentials, in either of ClickHouse's ways.
func (s *Server) known(r *http.Request) bool {
	user, password, ok := r.BasicAuth()
	if !ok {
		user, password = r.Header.Get("X-ClickHouse-User"), r.Header.Get("X-ClickHouse-Key")
	}
	user = cmp.Or(user, "default")
	return user == cmp.Or(s.User, "default") && subtle.ConstantTimeCompare([]byte(password), []byte(s.Password)) == 1
}

// read reads a request's body.
func read(r *http.Request, packed bool) ([]byte, error) {
	if r.Body == nil {
		return nil, nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	if err == nil && packed {
		body, err = io.ReadAll(io.LimitReader(decompressed(body), maxBody+1))
	}
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) || len(body) > maxBody {
		return nil, refusal(tooManyBytes, "the body has more than %d bytes", maxBody)
	}
	if err != nil {
		return nil, refusal(badArguments, "body: %v", err)
	}
	return body, nil
}

// refusal returns an error of this server in the engine's form.
func refusal(code int, format string, args ...any) error {
	return &Exception{Code: code, Message: fmt.Sprintf("Code: %d. DB::Exception: ", code) + fmt.Sprintf(format, args...)}
}
