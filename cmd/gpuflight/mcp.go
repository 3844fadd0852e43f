// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/version"
)

const mcpUsage = `gpuflight mcp is a server of the Model Context Protocol on standard input and output. Programs with
language models use it to find out why a program was slow. It answers from the store of a Collector and
from recordings, which a Collector with a temporary store loads. If the Collector requires a key, set
GPUFLIGHT_KEY.

Usage:
  gpuflight mcp [flags] [FILE|FOLDER...]

Example of a client's configuration:
  {"mcpServers": {"gpuflight": {"command": "gpuflight", "args": ["mcp"]}}}

Flags:
`

// Bounds of answers.
const (
	mcpLimit     = 10
	mcpMaxLimit  = 50
	mcpMaxText   = 300       // characters of a name or a stack
	mcpMaxAnswer = 64 << 10  // bytes of an answer
	mcpMaxRead   = 256 << 20 // bytes of an answer of the Collector
	// mcpCiteTime bounds the search for the longest launches of an answer.
	mcpCiteTime = 10 * time.Second
)

const mcpInstructions = `Data of GPU programs: what each device did, why it was idle, and what to change.
Begin with list_sessions, or open_recording for a file of gpuflight trace, then call report.
All times are nanoseconds. Members without _ns, such as start, from and to, are relative to base, which is Unix time.
Answers cite operations and scopes by span id and start: pass both to the tool span for details.
The member left_out counts the values that lists of the answer lack, by list.
Gains are upper bounds and do not add up.`

func runMCP(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("mcp", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	address := fs.String("url", defaultURL, "address of the Collector's query API")
	args, err := parse(fs, args, mcpUsage, stdout)
	if err != nil {
		return err
	}
	if err := checkURL(*address); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	m := &mcpSource{ctx: ctx, api: queryAPI{*address}, stderr: stderr}
	defer m.close()
	defer cancel()
	for _, path := range args {
		if _, err := m.load(ctx, path); err != nil {
			return err
		}
	}
	err = newMCPServer(m).Run(ctx, &mcp.StdioTransport{})
	if ctx.Err() != nil || errors.Is(err, io.EOF) {
		err = nil // the user or the client ended it
	}
	return err
}

// mcpSource has the sessions of a Collector, and of recordings once one has been opened. It is safe for
// concurrent use.
type mcpSource struct {
	ctx    context.Context // of the server
	api    queryAPI
	stderr io.Writer

	starting sync.Mutex // held while a viewer starts; guards dir
	dir      string     // "" before the first start
	mu       sync.Mutex
	viewer   *viewer // nil before the first start
}

// load opens a recording and returns all sessions of recordings.
func (m *mcpSource) load(ctx context.Context, path string) ([]storedSession, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	v, err := m.start()
	if err != nil {
		return nil, err
	}
	list, err := v.loadAll(ctx, []string{path}, m.stderr)
	if err != nil && v.hasEnded() {
		err = v.ended()
	}
	return list, err
}

// start returns the viewer, which it starts if none runs. After an unexpected end, the new one has the same
// store.
func (m *mcpSource) start() (*viewer, error) {
	m.starting.Lock()
	defer m.starting.Unlock()
	if err := m.ctx.Err(); err != nil {
		return nil, err
	}
	before := m.current()
	if before != nil && !before.hasEnded() {
		return before, nil
	}
	program, err := findCollector()
	if err != nil {
		return nil, err
	}
	listen, err := freeAddress()
	if err != nil {
		return nil, err
	}
	if m.dir == "" {
		if m.dir, err = os.MkdirTemp("", "gpuflight-mcp-"); err != nil {
			return nil, err
		}
	}
	v, err := startViewer(m.ctx, program, m.dir, listen)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.viewer = v
	return v, nil
}

func (m *mcpSource) current() *viewer {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.viewer
}

// close stops the viewer. The context of the server must have ended, so that no other one starts.
func (m *mcpSource) close() {
	m.starting.Lock()
	defer m.starting.Unlock()
	if v := m.current(); v != nil {
		_ = v.stop() // the server ends anyway
	}
	if m.dir != "" {
		_ = os.RemoveAll(m.dir) // best effort: the folder is temporary
	}
}

// apis returns the APIs to search, that of recordings first. It starts a viewer that ended again; the error
// says why it cannot, and the other API is still valid.
func (m *mcpSource) apis() ([]queryAPI, error) {
	v := m.current()
	if v == nil {
		return []queryAPI{m.api}, nil
	}
	if v.hasEnded() {
		again, err := m.start()
		if err != nil {
			return []queryAPI{m.api}, fmt.Errorf("the recordings cannot be read: %w", err)
		}
		v = again
	}
	return []queryAPI{v.api, m.api}, nil
}

// sessions lists the sessions of all APIs. An API that does not answer is an error only if no other does.
func (m *mcpSource) sessions(ctx context.Context, text string) ([]storedSession, error) {
	var all []storedSession
	answered := false
	apis, firstErr := m.apis()
	for _, api := range apis {
		list, err := api.sessions(ctx, text)
		if err != nil {
			firstErr = cmp.Or(firstErr, err)
			continue
		}
		answered = true
		all = append(all, list...)
	}
	if !answered {
		return nil, fmt.Errorf("%w; or open a recording with open_recording", firstErr)
	}
	return all, nil
}

// mcpSession is a session and its API.
type mcpSession struct {
	queryAPI
	id string
}

func (m *mcpSource) find(ctx context.Context, id string) (*mcpSession, error) {
	if id == "" {
		return nil, errors.New("session is empty: use an id of list_sessions")
	}
	apis, firstErr := m.apis()
	for _, api := range apis {
		s, err := api.find(ctx, id)
		if err == nil {
			return &mcpSession{api, s.ID}, nil
		}
		firstErr = cmp.Or(firstErr, err)
	}
	return nil, firstErr
}

// get decodes the answer of the API below a session. Numbers stay exact.
func (s *mcpSession) get(ctx context.Context, path string, query url.Values, answer any) error {
	return getExact(ctx, s.queryAPI, "/sessions/"+url.PathEscape(s.id)+path, query, answer)
}

func getExact(ctx context.Context, api queryAPI, path string, query url.Values, answer any) error {
	in, err := api.open(ctx, http.MethodGet, path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	defer in.Close()
	d := json.NewDecoder(io.LimitReader(in, mcpMaxRead))
	d.UseNumber()
	if err := d.Decode(answer); err != nil {
		return fmt.Errorf("cannot read the answer of %s: %w", api.address, err)
	}
	return nil
}

// Arguments of tools.
type (
	mcpSessionArg struct {
		Session string `json:"session" jsonschema:"id of a session, or the beginning of it"`
	}
	mcpInterval struct {
		mcpSessionArg
		From  *int64 `json:"from,omitempty" jsonschema:"begin of the interval in nanoseconds since base; without it, the begin of the session"`
		To    *int64 `json:"to,omitempty" jsonschema:"end of the interval in nanoseconds since base; without it, the end of the session"`
		Limit int    `json:"limit,omitempty" jsonschema:"most rows of a list, 1 to 50; without it, 10"`
	}
	mcpListArgs struct {
		Text  string `json:"text,omitempty" jsonschema:"part of the id, the service, the host or the run"`
		Limit int    `json:"limit,omitempty" jsonschema:"most sessions, 1 to 50; without it, 10"`
	}
	mcpOpenArgs struct {
		Path string `json:"path" jsonschema:"file or folder: OTLP of gpuflight trace --output, GPU Flight logs, or an exported session"`
	}
	mcpGapArgs struct {
		mcpInterval
		Cause string `json:"cause,omitempty" jsonschema:"only gaps with time of this cause, such as sync, host, launch, allocator, copy_call, queued"`
	}
	mcpKernelArgs struct {
		mcpInterval
		Group string `json:"group,omitempty" jsonschema:"name (without it) or shape: name with grid, block and registers"`
		Text  string `json:"text,omitempty" jsonschema:"part of the name"`
	}
	mcpScopeArgs struct {
		mcpSessionArg
		Limit int `json:"limit,omitempty" jsonschema:"most scopes, 1 to 50; without it, 10"`
	}
	mcpPathArgs struct {
		mcpInterval
		Span   string `json:"span,omitempty" jsonschema:"a scope or request: 16 hexadecimal digits"`
		Start  *int64 `json:"start,omitempty" jsonschema:"start of the span as another answer has it, which is faster"`
		Device string `json:"device,omitempty" jsonschema:"device of the step from from to to, as steps.device has it"`
	}
	mcpCompareArgs struct {
		A     string `json:"a" jsonschema:"id of the first session, or the beginning of it"`
		B     string `json:"b" jsonschema:"id of the second session"`
		Limit int    `json:"limit,omitempty" jsonschema:"most rows of each list, 1 to 50; without it, 10"`
	}
	mcpRanksArgs struct {
		Run   string `json:"run" jsonschema:"run of list_sessions (cuda.run.id)"`
		Limit int    `json:"limit,omitempty" jsonschema:"most rows of each list, 1 to 50; without it, 10"`
	}
	mcpSpanArgs struct {
		mcpSessionArg
		Span  string `json:"span" jsonschema:"16 hexadecimal digits"`
		Start *int64 `json:"start,omitempty" jsonschema:"start of the span as another answer has it, which is faster"`
	}
)

func (a *mcpInterval) query() url.Values {
	q := url.Values{}
	if a.From != nil {
		q.Set("from", strconv.FormatInt(*a.From, 10))
	}
	if a.To != nil {
		q.Set("to", strconv.FormatInt(*a.To, 10))
	}
	return q
}

func limitOf(n int) int {
	if n <= 0 {
		n = mcpLimit
	}
	return min(n, mcpMaxLimit)
}

// newMCPServer returns the server with its tools.
func newMCPServer(m *mcpSource) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "gpuflight", Version: version.String()}, &mcp.ServerOptions{Instructions: mcpInstructions})
	addTool(s, "list_sessions", "Recorded runs of GPU programs, the newest first, with kernels and kernel time.", m.listSessions)
	addTool(s, "open_recording", "Opens a recording, so that its sessions can be analysed. Answers with the sessions of all opened recordings.", m.openRecording)
	addTool(s, "report", "Why a session was slow: busy and idle time of each device by cause, what limits it, steps with outliers, advice with the most it can save, and the kernels with the most time.", m.report)
	addTool(s, "steps", "The slow steps (outliers with their reason) and the longest steps of a session, with their parts.", m.steps)
	addTool(s, "idle_gaps", "The longest intervals in which a device did nothing, each with its causes, the operations around it, the call and the scope.", m.idleGaps)
	addTool(s, "critical_path", "What determined how long a scope or request (span), or a step of a device (from, to, device), took: a chain of host, launch, queue and device parts that sum exactly to its duration, across services.", m.criticalPath)
	addTool(s, "kernels", "Sums of kernels by name or shape, the most time first, each with its longest launch.", m.kernels)
	addTool(s, "scopes", "Scopes by path with their wall time and the device time of work launched in them and below, each with its longest instance.", m.scopes)
	addTool(s, "compare", "What changed from session a to session b: kernels, shapes, scopes and steps, with tests.", m.compare)
	addTool(s, "ranks", "Which rank of a distributed run the others waited for, and why.", m.ranks)
	addTool(s, "span", "All that is known of one operation or scope: times, attributes, parents, neighbours on its stream, host stack.", m.span)
	return s
}

// addTool adds a tool that reads only. Its answers are shortened and bounded.
func addTool[In any](s *mcp.Server, name, description string, f func(context.Context, *In) (any, error)) {
	closed := false
	tool := &mcp.Tool{Name: name, Description: description, Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true, OpenWorldHint: &closed}}
	mcp.AddTool(s, tool, func(ctx context.Context, _ *mcp.CallToolRequest, in In) (*mcp.CallToolResult, any, error) {
		answer, err := f(ctx, &in)
		if err != nil {
			return nil, nil, err
		}
		out, err := bounded(answer)
		if err != nil {
			return nil, nil, err
		}
		// The SDK would escape < and > in the text, which makes names of C++ much longer.
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(out)}}}, out, nil
	})
}

// bounded returns an answer as JSON whose texts are short. Of an answer that is too large, it shortens lists, first
// those inside others and last those of texts.
func bounded(answer any) (json.RawMessage, error) {
	left := leftOut{}
	if o, ok := answer.(object); ok {
		if l, ok := o[leftOutName].(leftOut); ok {
			left = l
		}
	}
	text, err := json.Marshal(answer)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil {
		return nil, err
	}
	shortTexts(tree)
	var b bytes.Buffer
	for depth, n := 1, mcpMaxLimit; ; n /= 2 {
		if n == 0 {
			depth, n = depth-1, mcpMaxLimit
		}
		b.Reset()
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false) // names of C++ are full of < and >
		if err := e.Encode(tree); err != nil {
			return nil, err
		}
		if b.Len() <= mcpMaxAnswer {
			return b.Bytes(), nil
		}
		if depth < -1 {
			return nil, fmt.Errorf("the answer has %d bytes, more than %d: use a smaller limit", b.Len(), mcpMaxAnswer)
		}
		shorten(tree, "", n, depth, depth < 0, left)
		if o, ok := tree.(object); ok && len(left) > 0 {
			o[leftOutName] = left
		}
	}
}

// leftOut is the number of values that an answer lacks, by the name of the list.
type leftOut map[string]int

const leftOutName = "left_out"

// add counts values that a list lacks.
func (l leftOut) add(name string, more int) {
	if more > 0 {
		l[name] += more
	}
}

// cut leaves the first n values of a list.
func cut[T any](left leftOut, name string, list *[]T, n int) {
	left.add(name, len(*list)-n)
	*list = (*list)[:min(n, len(*list))]
}

// cutOf is cut for a list that has not all values, of which there are total.
func cutOf[T any](left leftOut, name string, list *[]T, n int, total int64) {
	left.add(name, int(total)-len(*list))
	cut(left, name, list, n)
}

// count returns a number of an answer of the API, 0 if it has none.
func count(answer object, name string) int {
	n, _ := answer[name].(json.Number)
	v, _ := n.Int64()
	return int(v)
}

// oneText are lists of texts that only together say something.
var oneText = []string{"names", "path", "scope", "scope_path", "stack"}

// shorten returns JSON with at most n values of each list of objects that is inside depth other lists, and with texts
// also of each list of texts.
func shorten(x any, name string, n, depth int, texts bool, left leftOut) any {
	switch v := x.(type) {
	case []any:
		if len(v) == 0 {
			break
		}
		_, row := v[0].(object)
		_, text := v[0].(string)
		if row && depth <= 0 || text && texts && !slices.Contains(oneText, name) {
			cut(left, name, &v, n)
		}
		for i := range v {
			v[i] = shorten(v[i], name, n, depth-1, texts, left)
		}
		return v
	case object:
		for k := range v {
			v[k] = shorten(v[k], k, n, depth, texts, left)
		}
	}
	return x
}

func shortTexts(x any) any {
	switch v := x.(type) {
	case string:
		if r := []rune(v); len(r) > mcpMaxText {
			return string(r[:mcpMaxText-1]) + "…"
		}
	case []any:
		for i := range v {
			v[i] = shortTexts(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = shortTexts(v[k])
		}
	}
	return x
}

type object = map[string]any

func sessionList(list []storedSession, limit int) any {
	rows, left := []object{}, leftOut{}
	cut(left, "sessions", &list, limitOf(limit))
	for _, s := range list {
		row := object{
			"id": s.ID, "service": s.Service, "host": s.Host, "start_unix_ns": strconv.FormatInt(s.Start, 10), "duration_ns": s.DurationNs,
			"operations": s.Operations, "kernel_ns": s.KernelNs, "live": s.Live,
		}
		if s.Run != "" {
			row["run"], row["rank"], row["rank_size"] = s.Run, s.Rank, s.RankSize
		}
		rows = append(rows, row)
	}
	return object{"sessions": rows, leftOutName: left}
}

func (m *mcpSource) listSessions(ctx context.Context, a *mcpListArgs) (any, error) {
	list, err := m.sessions(ctx, a.Text)
	if err != nil {
		return nil, err
	}
	return sessionList(list, a.Limit), nil
}

func (m *mcpSource) openRecording(ctx context.Context, a *mcpOpenArgs) (any, error) {
	list, err := m.load(ctx, a.Path)
	if err != nil {
		return nil, err
	}
	return sessionList(list, mcpMaxLimit), nil
}

func (m *mcpSource) analyse(ctx context.Context, a *mcpInterval) (*mcpSession, *analysis.Answer, error) {
	s, err := m.find(ctx, a.Session)
	if err != nil {
		return nil, nil, err
	}
	answer := &analysis.Answer{}
	return s, answer, s.get(ctx, "/analysis", a.query(), answer)
}

func (m *mcpSource) report(ctx context.Context, a *mcpInterval) (any, error) {
	s, answer, err := m.analyse(ctx, a)
	if err != nil {
		return nil, err
	}
	n, left := limitOf(a.Limit), leftOut{}
	few := min(n, 5) // so that a smaller limit makes the answer smaller
	for i := range answer.Devices {
		d := &answer.Devices[i]
		cut(left, "gaps", &d.Gaps, min(n, 3))
		cut(left, "host_by_scope", &d.HostScopes, few)
		cut(left, "host_by_line", &d.HostLines, few)
		cut(left, "sync_by_call", &d.SyncCalls, few)
		cutOf(left, "small_kernels", &d.Small, few, d.SmallTotal.Shapes)
	}
	left.steps(&answer.Steps, min(n, 3), n)
	kernels, err := s.kernels(ctx, "name", "", n, a.query(), left)
	if err != nil {
		return nil, err
	}
	return object{"session": s.id, "analysis": answer, "kernels": kernels, leftOutName: left}, nil
}

// steps leaves the first steps of both lists.
func (l leftOut) steps(s *analysis.AnswerSteps, longest, outliers int) {
	cutOf(l, "longest", &s.Longest, longest, s.Count)
	cutOf(l, "outliers", &s.Outliers, outliers, s.OutlierCount)
}

func (m *mcpSource) steps(ctx context.Context, a *mcpInterval) (any, error) {
	s, answer, err := m.analyse(ctx, a)
	if err != nil {
		return nil, err
	}
	n, left := limitOf(a.Limit), leftOut{}
	left.steps(&answer.Steps, n, n)
	return object{"session": s.id, "base": strconv.FormatInt(answer.Base, 10), "complete": answer.Complete, "steps": answer.Steps, leftOutName: left}, nil
}

func (m *mcpSource) idleGaps(ctx context.Context, a *mcpGapArgs) (any, error) {
	var cause analysis.Cause
	if a.Cause != "" {
		if err := cause.UnmarshalText([]byte(a.Cause)); err != nil {
			return nil, err
		}
	}
	s, answer, err := m.analyse(ctx, &a.mcpInterval)
	if err != nil {
		return nil, err
	}
	devices, left := []object{}, leftOut{}
	for i := range answer.Devices {
		d := &answer.Devices[i]
		gaps := d.Gaps
		if a.Cause != "" {
			gaps = slices.DeleteFunc(gaps, func(g analysis.AnswerGap) bool { return g.Idle[cause] == 0 })
			slices.SortStableFunc(gaps, func(x, y analysis.AnswerGap) int { return cmp.Compare(y.Idle[cause], x.Idle[cause]) })
		}
		cut(left, "gaps", &gaps, limitOf(a.Limit))
		devices = append(devices, object{"id": d.ID, "index": d.Index, "idle_ns": d.Whole.IdleNs, "idle_by_cause_ns": d.Whole.Idle, "gaps": gaps})
	}
	return object{"session": s.id, "base": strconv.FormatInt(answer.Base, 10), "complete": answer.Complete, "causes": answer.Causes, "devices": devices, leftOutName: left}, nil
}

func (m *mcpSource) kernels(ctx context.Context, a *mcpKernelArgs) (any, error) {
	s, err := m.find(ctx, a.Session)
	if err != nil {
		return nil, err
	}
	group := cmp.Or(a.Group, "name")
	if group != "name" && group != "shape" {
		return nil, fmt.Errorf("group %q: use name or shape", group)
	}
	left := leftOut{}
	answer, err := s.kernels(ctx, group, a.Text, limitOf(a.Limit), a.query(), left)
	if err != nil {
		return nil, err
	}
	answer[leftOutName] = left
	return answer, nil
}

// kernels returns groups of kernels with their longest launches, and counts those that it leaves out.
func (s *mcpSession) kernels(ctx context.Context, group, text string, limit int, interval url.Values, left leftOut) (object, error) {
	q := maps.Clone(interval)
	q.Set("group", group)
	q.Set("limit", strconv.Itoa(limit))
	if text != "" {
		q.Set("q", text)
	}
	var answer struct {
		Base   string
		Total  object
		Groups []object
	}
	if err := s.get(ctx, "/kernels", q, &answer); err != nil {
		return nil, err
	}
	left.add("groups", count(answer.Total, "groups")-len(answer.Groups))
	delete(answer.Total, "groups")
	deadline := time.Now().Add(mcpCiteTime)
	for _, g := range answer.Groups {
		q := maps.Clone(interval)
		q.Set("operation", "kernel")
		q.Set("sort", "duration")
		q.Set("limit", "1")
		if name, ok := g["name"].(string); ok {
			q.Set("name", name)
		}
		if id, ok := g["id"].(json.Number); ok {
			q.Set("shape", id.String())
		}
		var page struct {
			Operations []struct {
				Span       string `json:"span"`
				Start      int64  `json:"start"`
				DurationNs int64  `json:"duration_ns"`
			} `json:"operations"`
		}
		if time.Now().After(deadline) {
			break
		}
		if err := s.get(ctx, "/operations", q, &page); err != nil {
			return nil, err
		}
		if len(page.Operations) > 0 {
			g["longest"] = page.Operations[0]
		}
	}
	return object{"base": answer.Base, "total": answer.Total, "groups": answer.Groups}, nil
}

// mcpScope is a node of the tree of scopes.
type mcpScope struct {
	Path      uint32   `json:"path"`
	Parent    uint32   `json:"parent"`
	Name      string   `json:"name"`
	Names     []string `json:"names"`
	Instances int64    `json:"instances"`
	WallNs    int64    `json:"wall_ns"`
	P50Ns     int64    `json:"p50_ns"`
	P99Ns     int64    `json:"p99_ns"`
	Self      mcpSums  `json:"self"`
	Total     mcpSums  `json:"total"`
	Longest   object   `json:"longest,omitempty"`
}

type mcpSums struct {
	Kernels  int64 `json:"kernels"`
	KernelNs int64 `json:"kernel_ns"`
	Copies   int64 `json:"copies"`
	CopyNs   int64 `json:"copy_ns"`
}

func (m *mcpSource) scopes(ctx context.Context, a *mcpScopeArgs) (any, error) {
	s, err := m.find(ctx, a.Session)
	if err != nil {
		return nil, err
	}
	var answer struct{ Nodes []mcpScope }
	if err := s.get(ctx, "/scopes", url.Values{}, &answer); err != nil {
		return nil, err
	}
	nodes := answer.Nodes
	names := map[uint32][]string{}
	for i := range nodes {
		n := &nodes[i]
		if i > 0 { // the root has no name
			n.Names = append(slices.Clone(names[n.Parent]), n.Name)
		}
		names[n.Path] = n.Names
	}
	nodes = slices.DeleteFunc(nodes, func(n mcpScope) bool { return len(n.Names) == 0 })
	slices.SortStableFunc(nodes, func(a, b mcpScope) int {
		return cmp.Or(cmp.Compare(b.Total.KernelNs+b.Total.CopyNs, a.Total.KernelNs+a.Total.CopyNs), cmp.Compare(b.WallNs, a.WallNs))
	})
	left := leftOut{}
	cut(left, "scopes", &nodes, limitOf(a.Limit))
	var base string
	deadline := time.Now().Add(mcpCiteTime)
	for i := range nodes {
		if time.Now().After(deadline) {
			break
		}
		var page struct {
			Base      string
			Instances []object
		}
		path := fmt.Sprintf("/scopes/%d/instances", nodes[i].Path)
		if err := s.get(ctx, path, url.Values{"sort": {"wall"}, "limit": {"1"}}, &page); err != nil {
			return nil, err
		}
		base = page.Base
		if len(page.Instances) > 0 {
			nodes[i].Longest = page.Instances[0]
		}
	}
	return object{"session": s.id, "base": base, "scopes": nodes, leftOutName: left}, nil
}

func (m *mcpSource) criticalPath(ctx context.Context, a *mcpPathArgs) (any, error) {
	s, err := m.find(ctx, a.Session)
	if err != nil {
		return nil, err
	}
	q := a.query()
	q.Set("limit", strconv.Itoa(limitOf(a.Limit)))
	if a.Span != "" {
		q.Set("span", a.Span)
		if a.Start != nil {
			q.Set("at", strconv.FormatInt(*a.Start, 10))
		}
	} else if a.Device != "" {
		q.Set("device", a.Device)
	}
	var answer object
	if err := s.get(ctx, "/analysis/critical", q, &answer); err != nil {
		return nil, err
	}
	left := leftOut{}
	left.add("parts", count(answer, "more_parts"))
	delete(answer, "more_parts")
	answer[leftOutName] = left
	return answer, nil
}

func (m *mcpSource) compare(ctx context.Context, a *mcpCompareArgs) (any, error) {
	x, err := m.find(ctx, a.A)
	if err != nil {
		return nil, err
	}
	y, err := m.find(ctx, a.B)
	if err != nil {
		return nil, err
	}
	if x.address != y.address {
		return nil, errors.New("one session is a recording and the other in a Collector: open both as recordings")
	}
	var answer object
	err = getExact(ctx, x.queryAPI, "/compare", url.Values{"a": {x.id}, "b": {y.id}}, &answer)
	return shortLists(answer, limitOf(a.Limit), leftOut{}), err
}

func (m *mcpSource) ranks(ctx context.Context, a *mcpRanksArgs) (any, error) {
	n := limitOf(a.Limit)
	apis, firstErr := m.apis()
	for _, api := range apis {
		var answer object
		err := getExact(ctx, api, "/ranks", url.Values{"run": {a.Run}, "limit": {strconv.Itoa(n)}}, &answer)
		if err == nil {
			left := leftOut{}
			rows, _ := answer["collectives"].([]any)
			left.add("collectives", count(answer, "collectives_total")-len(rows))
			return shortLists(answer, n, left), nil
		}
		firstErr = cmp.Or(firstErr, err)
	}
	return nil, firstErr
}

// shortLists returns JSON with at most n values of each list of objects, and adds to those that are left out.
func shortLists(answer object, n int, left leftOut) object {
	if answer == nil {
		return nil
	}
	shorten(answer, "", n, 0, false, left)
	answer[leftOutName] = left
	return answer
}

func (m *mcpSource) span(ctx context.Context, a *mcpSpanArgs) (any, error) {
	s, err := m.find(ctx, a.Session)
	if err != nil {
		return nil, err
	}
	if id, err := strconv.ParseUint(a.Span, 16, 64); err != nil || len(a.Span) != 16 || id == 0 {
		return nil, fmt.Errorf("span %q: use the 16 hexadecimal digits of a span id", a.Span)
	}
	q := url.Values{}
	if a.Start != nil {
		q.Set("at", strconv.FormatInt(*a.Start, 10))
	}
	var answer object
	err = s.get(ctx, "/spans/"+strings.ToLower(a.Span), q, &answer)
	return answer, err
}
