// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
)

type kernelsBody struct {
	Total  kernelTotal    `json:"total"`
	Groups []*kernelGroup `json:"groups"`
}

type operationsBody struct {
	Base       string             `json:"base"`
	Operations []*operationAnswer `json:"operations"`
	Shapes     []struct{ ID uint32 }
	Next       string `json:"next"`
}

// sum pages through all operations and returns their number and time.
func sum(t *testing.T, s *server, target string) (n, ns int64) {
	cursor := ""
	for {
		page := get[operationsBody](t, s, target+cursor)
		for _, o := range page.Operations {
			n++
			ns += o.DurationNs
		}
		if page.Next == "" {
			return n, ns
		}
		cursor = "&cursor=" + url.QueryEscape(page.Next)
	}
}

func TestKernels_RowsOfEachGroup(t *testing.T) {
	s, id := generated(t)
	p := "/api/v1/sessions/" + id
	for _, tt := range []struct{ group, filter string }{
		{"name", "name=%s"}, {"shape", "shape=%s"}, {"path", "direct=true&path=%s"}, {"lane", "lane=%s"},
	} {
		t.Run(tt.group, func(t *testing.T) {
			k := get[kernelsBody](t, s, p+"/kernels?limit=5&buckets=true&group="+tt.group)
			require.NotEmpty(t, k.Groups)
			assert.Equal(t, int64(4859), k.Total.Count, "kernels of the recording")
			for _, g := range k.Groups {
				value := url.QueryEscape(g.Name)
				if g.ID != nil {
					value = strconv.Itoa(int(*g.ID))
				}
				rows := p + "/operations?limit=1000&sort=duration&operation=kernel&" + fmt.Sprintf(tt.filter, value)
				n, ns := sum(t, s, rows)
				assert.Equal(t, []int64{g.Count, g.SumNs}, []int64{n, ns})
				b := g.Buckets[len(g.Buckets)/2]
				n, _ = sum(t, s, fmt.Sprintf("%s&min_ns=%d&max_ns=%d", rows, b.FromNs, b.ToNs))
				assert.Equal(t, b.Count, n)
			}
		})
	}
}

func TestScopes_RowsOfEachNode(t *testing.T) {
	s, id := generated(t)
	p := "/api/v1/sessions/" + id
	tree := get[struct{ Nodes []scopeNode }](t, s, p+"/scopes?idle=true")
	require.Len(t, tree.Nodes, 9)
	assert.Nil(t, get[struct{ Nodes []scopeNode }](t, s, p+"/scopes").Nodes[1].IdleNs)
	kernels := get[struct{ Operations []operationAnswer }](t, s, p+"/operations?operation=kernel&limit=20000").Operations
	assert.Equal(t, int64(4859), tree.Nodes[0].Total.Kernels)
	for _, node := range tree.Nodes {
		n, ns := sum(t, s, fmt.Sprintf("%s/operations?operation=kernel&direct=true&path=%d", p, node.Path))
		assert.Equal(t, []int64{node.Self.Kernels, node.Self.KernelNs}, []int64{n, ns}, node.Name)
		n, ns = sum(t, s, fmt.Sprintf("%s/operations?operation=kernel&path=%d", p, node.Path))
		assert.Equal(t, []int64{node.Total.Kernels, node.Total.KernelNs}, []int64{n, ns}, node.Name)
		if node.Instances == 0 {
			assert.Nil(t, node.IdleNs)
			continue
		}
		list := get[struct{ Instances []instanceAnswer }](t, s, fmt.Sprintf("%s/scopes/%d/instances?sort=device&limit=100&idle=true", p, node.Path))
		require.Len(t, list.Instances, int(node.Instances))
		var total sums
		var idleNs int64
		for _, i := range list.Instances {
			n, ns = sum(t, s, p+"/operations?operation=kernel&below=true&parent="+i.Span)
			assert.Equal(t, []int64{i.Kernels, i.KernelNs}, []int64{n, ns}, node.Name)
			total.Kernels += i.Kernels
			total.KernelNs += i.KernelNs
			assert.Equal(t, idle(kernels, i.Start, i.Start+i.DurationNs), *i.IdleNs, node.Name)
			idleNs += *i.IdleNs
		}
		require.NotNil(t, node.IdleNs, node.Name)
		assert.Equal(t, idleNs, *node.IdleNs, node.Name)
		assert.Equal(t, []int64{node.Total.Kernels, node.Total.KernelNs}, []int64{total.Kernels, total.KernelNs}, node.Name)
	}
}

// idle sums the gaps between kernels, which are sorted by start, inside an interval.
func idle(kernels []operationAnswer, from, to int64) (ns int64) {
	end := int64(math.MaxInt64)
	for i := range kernels {
		ns += max(min(kernels[i].Start, to)-max(end, from), 0)
		if i == 0 {
			end = 0
		}
		end = max(end, kernels[i].Start+kernels[i].DurationNs)
	}
	return ns
}

func TestTimeline_BinsAndSlices(t *testing.T) {
	s, id := generated(t)
	p := "/api/v1/sessions/" + id
	whole := get[timelineAnswer](t, s, p+"/timeline?bins=100")
	var count int64
	for _, n := range whole.Bins.Count {
		count += int64(n)
	}
	assert.Equal(t, int64(5653), count, "operations of the recording")
	assert.Nil(t, whole.Slices)
	all := get[timelineAnswer](t, s, p+"/timeline?bins=100&slices=20000")
	require.NotNil(t, all.Slices)
	assert.Len(t, all.Slices.Span, 5653)

	w := call(s, http.MethodGet, p+"/timeline?bins=100&slices=20000", "Accept", "application/octet-stream")
	require.Equal(t, http.StatusOK, w.Code)
	b := w.Body.Bytes()
	size := binary.LittleEndian.Uint32(b)
	var header timelineAnswer
	require.NoError(t, json.Unmarshal(b[4:4+size], &header))
	assert.Equal(t, all.Shapes, header.Shapes)
	require.Len(t, header.Columns, 16)
	for _, c := range header.Columns {
		require.Zero(t, c.Offset%8)
		data := b[c.Offset:]
		switch c.Table + "." + c.Name {
		case "bins.count":
			for i, want := range all.Bins.Count {
				require.Equal(t, want, binary.LittleEndian.Uint32(data[4*i:]))
			}
		case "slices.start":
			for i, want := range all.Slices.Start {
				require.Equal(t, want, int64(math.Float64frombits(binary.LittleEndian.Uint64(data[8*i:]))))
			}
		case "slices.span":
			for i, want := range all.Slices.Span {
				require.Equal(t, want, fmt.Sprintf("%016x", binary.LittleEndian.Uint64(data[8*i:])))
			}
		}
	}
}

func TestSpan_Operation(t *testing.T) {
	s, id := generated(t)
	p := "/api/v1/sessions/" + id
	page := get[operationsBody](t, s, p+"/operations?operation=kernel&sort=duration&limit=1")
	longest := page.Operations[0]
	d := get[struct {
		Operation, Previous, Next *operationAnswer
		Parents                   []struct{ Name, Span string }
		Lane                      *laneAnswer
		Shape                     *shapeName
	}](t, s, fmt.Sprintf("%s/spans/%s?at=%d", p, longest.Span, longest.Start))
	assert.Equal(t, longest, d.Operation)
	assert.Equal(t, longest.Name, d.Shape.Name)
	assert.Equal(t, longest.Lane, d.Lane.ID)
	require.NotEmpty(t, d.Parents)
	assert.Equal(t, longest.Parent, d.Parents[len(d.Parents)-1].Span)
	require.NotNil(t, d.Previous)
	require.NotNil(t, d.Next)
	assert.LessOrEqual(t, d.Previous.Start, longest.Start)
	assert.GreaterOrEqual(t, d.Next.Start, longest.Start)
	assert.Equal(t, longest.Lane, d.Previous.Lane)
}

func TestBase_MovesTimes(t *testing.T) {
	s, id := generated(t)
	p := "/api/v1/sessions/" + id + "/operations?limit=1"
	page := get[operationsBody](t, s, p)
	base, err := strconv.ParseInt(page.Base, 10, 64)
	require.NoError(t, err)
	moved := get[operationsBody](t, s, fmt.Sprintf("%s&base=%d", p, base-1000))
	assert.Equal(t, page.Operations[0].Start+1000, moved.Operations[0].Start)
	later := get[operationsBody](t, s, fmt.Sprintf("%s&base=%d&from=%d", p, base-1000, page.Operations[0].Start+1001))
	assert.NotEqual(t, page.Operations[0].Span, later.Operations[0].Span)
}

func TestETag_UnchangedSession(t *testing.T) {
	s, id := generated(t)
	p := "/api/v1/sessions/" + id
	w := call(s, http.MethodGet, p)
	require.Equal(t, http.StatusOK, w.Code)
	tag := w.Header().Get("ETag")
	require.NotEmpty(t, tag)
	assert.Equal(t, http.StatusNotModified, call(s, http.MethodGet, p, "If-None-Match", tag).Code)
	require.Equal(t, http.StatusNoContent, call(s, http.MethodPut, p+"/pin").Code)
	w = call(s, http.MethodGet, p, "If-None-Match", tag)
	require.Equal(t, http.StatusOK, w.Code)
	assert.Contains(t, w.Body.String(), `"pinned":true`)
	require.Equal(t, http.StatusNoContent, call(s, http.MethodDelete, p).Code)
	assert.Equal(t, http.StatusNotFound, call(s, http.MethodGet, p, "If-None-Match", tag).Code)
}

func TestParameters_Invalid(t *testing.T) {
	s, id := generated(t)
	p := "/api/v1/sessions/" + id
	for _, tt := range []struct{ target, parameter string }{
		{"/api/v1/sessions?limit=0", "limit"}, {"/api/v1/sessions?from=-1", "from"}, {"/api/v1/sessions?from=9&to=9", "to"},
		{"/api/v1/sessions?cursor=x", "cursor"}, {"/api/v1/sessions?q=%ff", "q"}, {"/api/v1/sessions?x=1", `"x"`},
		{"/api/v1/traces/0", "trace"}, {"/api/v1/usage?by=x", "by"}, {"/api/v1/usage?by=session&of=x", "of"}, {p + "?base=x", "base"},
		{p + "/timeline?bins=4001", "bins"}, {p + "/timeline?lanes=a", "lanes"}, {p + "/timeline?from=1&from=2", "from"},
		{p + "/timeline?to=9223372036854775807", "to"}, {p + "/shapes", "ids"}, {p + "/kernels?group=x", "group"},
		{p + "/kernels?group=lane&name=x", "name"}, {p + "/operations?operation=x", "operation"},
		{p + "/operations?parent=1", "parent"}, {p + "/operations?cursor=1.2", "cursor"}, {p + "/operations?overlapping=1", "overlapping"},
		{p + "/operations?below=1", "below"}, {p + "/operations?stack_exact=1", "stack_exact"}, {p + "/operations?stack=%ff", "stack"}, {p + "/scopes/1/instances?idle=1", "idle"}, {p + "/scopes?idle=1", "idle"},
		{p + "/spans/x", "span"}, {p + "/spans?min_ns=-1", "min_ns"}, {p + "/scopes/x/instances", "path"},
		{p + "/samples?by=x", "by"}, {p + "/functions?path=x", "path"}, {p + "/stacks?limit=0", "limit"}, {p + "/logs?source=x", "source"}, {p + "/series/1", "key"}, {p + "/series/0000000000000000?points=3", "points"},
	} {
		t.Run(tt.target, func(t *testing.T) {
			w := call(s, http.MethodGet, tt.target)
			assert.Equal(t, http.StatusBadRequest, w.Code, w.Body)
			assert.True(t, strings.HasPrefix(w.Body.String(), `{"error":"parameter `+strings.ReplaceAll(tt.parameter, `"`, `\"`)+": "), w.Body)
		})
	}
	for _, target := range []string{"/api/v1/sessions/none", "/api/v1/x", p + "/spans/0000000000000001", p + "/texts/x", p + "/scopes/77/instances"} {
		assert.Equal(t, http.StatusNotFound, call(s, http.MethodGet, target).Code, target)
	}
	assert.Equal(t, http.StatusMethodNotAllowed, call(s, http.MethodPost, p).Code)
}

func TestServer_ForeignRequests(t *testing.T) {
	s, _ := generated(t)
	for _, tt := range []struct {
		name   string
		header []string
		code   int
	}{
		{"no headers", nil, 200},
		{"DNS rebinding", []string{"Host", "evil.example:8686"}, 403},
		{"address", []string{"Host", "127.0.0.1:8686"}, 200},
		{"IPv6", []string{"Host", "[::1]:8686"}, 200},
		{"same origin", []string{"Origin", "http://localhost:8686"}, 200},
		{"other origin", []string{"Origin", "http://evil.example"}, 403},
		{"opaque origin", []string{"Origin", "null"}, 403},
		{"other port", []string{"Origin", "http://localhost:3000"}, 403},
		{"cross site", []string{"Sec-Fetch-Site", "cross-site"}, 403},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := call(s, http.MethodGet, "/api/v1/health", tt.header...)
			assert.Equal(t, tt.code, w.Code)
			csp := w.Header().Get("Content-Security-Policy")
			assert.Contains(t, csp, "frame-ancestors 'none'")
			assert.NotContains(t, csp, "unsafe-inline")
			assert.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
		})
	}
}

// TestStacks_Part reads a session of which the limit allows a part. The kernels of the answer are those
// of its interval.
func TestStacks_Part(t *testing.T) {
	s, _ := generated(t)
	most := struct {
		id  string
		ops int64
	}{}
	for _, session := range get[struct {
		Sessions []struct {
			ID     string
			Counts map[string]int64
		}
	}](t, s, "/api/v1/sessions").Sessions {
		if n := session.Counts["ops"]; n > most.ops {
			most.id, most.ops = session.ID, n
		}
	}
	p := "/api/v1/sessions/" + url.PathEscape(most.id)
	type answer struct {
		Part   *struct{ From, To int64 }
		Stacks []stackAnswer
	}
	count := func(a answer) (n int64) {
		for _, x := range a.Stacks {
			n += x.Count
		}
		return n
	}
	whole := get[answer](t, s, p+"/stacks")
	assert.Nil(t, whole.Part)
	for _, limit := range []int64{most.ops / 2, 50, 1} {
		t.Run(strconv.FormatInt(limit, 10), func(t *testing.T) {
			s.stackKernels = limit
			part := get[answer](t, s, p+"/stacks")
			require.NotNil(t, part.Part)
			n := count(part)
			assert.True(t, n <= max(limit, 1) && n < count(whole), "%d of %d kernels", n, count(whole))
			assert.True(t, limit == 1 || n > 0, "no kernels")
			kernels := get[struct{ Total struct{ Count int64 } }](t, s, fmt.Sprintf("%s/kernels?from=%d&to=%d", p, part.Part.From, part.Part.To))
			assert.Equal(t, kernels.Total.Count, n)
			// With a higher limit, the interval is read whole.
			s.stackKernels = most.ops
			small := get[answer](t, s, fmt.Sprintf("%s/stacks?from=%d&to=%d", p, part.Part.From, part.Part.To))
			assert.Equal(t, part.Stacks, small.Stacks)
			assert.Nil(t, small.Part)
		})
	}
}

func TestAround_MedianBin(t *testing.T) {
	for _, tt := range []struct {
		counts    []int64
		limit     int64
		low, high int
	}{
		{[]int64{1, 1, 1, 1, 1}, 3, 0, 3},
		{[]int64{0, 0, 9, 0, 1}, 3, 2, 3},
		{[]int64{5, 0, 0, 5}, 10, 0, 4},
		{[]int64{100, 1, 1}, 10, 0, 1},
	} {
		total := int64(0)
		for _, n := range tt.counts {
			total += n
		}
		low, high := around(tt.counts, total, tt.limit)
		assert.Equal(t, []int{tt.low, tt.high}, []int{low, high}, "%v", tt.counts)
	}
}

func TestStacks_SumsOfAllSessions(t *testing.T) {
	s, _ := generated(t)
	withStack, withLines, withSamples := 0, 0, 0
	for _, session := range get[struct{ Sessions []struct{ ID string } }](t, s, "/api/v1/sessions").Sessions {
		p := "/api/v1/sessions/" + url.PathEscape(session.ID)
		stacks := get[struct {
			Stacks []stackAnswer
			Lines  []stackLine
		}](t, s, p+"/stacks")
		var count, ns int64
		for _, x := range stacks.Stacks {
			count += x.Count
			ns += x.SumNs
			if len(x.Stack) > 0 {
				withStack++
			}
		}
		root := get[struct{ Nodes []scopeNode }](t, s, p+"/scopes").Nodes
		assert.Equal(t, []int64{root[0].Total.Kernels, root[0].Total.KernelNs}, []int64{count, ns})
		var lines, all uint64
		for _, l := range stacks.Lines {
			lines += l.Samples
		}
		for _, x := range get[struct{ Samples []sampleAnswer }](t, s, p+"/samples?kind=stall&by=line").Samples {
			if x.Line != nil && issued(x.What) {
				all += x.Value
			}
		}
		assert.Equal(t, all, lines)
		if lines > 0 {
			withLines++
		}
		for _, n := range root {
			if n.Samples == nil {
				continue
			}
			withSamples++
			got := sampleSums{0, map[string]uint64{}, map[string]uint64{}}
			for _, f := range get[struct{ Functions []functionAnswer }](t, s, fmt.Sprintf("%s/functions?path=%d", p, n.Path)).Functions {
				got.Samples += f.Samples
				for k, v := range f.Stalls {
					got.Stalls[k] += v
				}
				for k, v := range f.Metrics {
					got.Metrics[k] += v
				}
			}
			assert.Equal(t, *n.Samples, got, n.Name)
			got = sampleSums{0, map[string]uint64{}, map[string]uint64{}}
			for _, x := range get[struct{ Samples []sampleAnswer }](t, s, fmt.Sprintf("%s/samples?path=%d", p, n.Path)).Samples {
				got.add(map[string]store.SampleKind{"stall": store.SampleStall, "sass": store.SampleSASS}[x.Kind], x.What, x.Value)
			}
			assert.Equal(t, *n.Samples, got, n.Name)
		}
	}
	assert.Positive(t, withStack)
	assert.Positive(t, withLines)
	assert.Greater(t, withSamples, 1)
}

func TestOperations_Stack(t *testing.T) {
	s, _ := generated(t)
	type total struct{ n, ns int64 }
	inner := 0
	for _, session := range get[struct{ Sessions []struct{ ID string } }](t, s, "/api/v1/sessions").Sessions {
		p := "/api/v1/sessions/" + url.PathEscape(session.ID)
		stacks := get[struct{ Stacks []stackAnswer }](t, s, p+"/stacks").Stacks
		below, exact := map[string]total{}, map[string]total{}
		add := func(to map[string]total, frames []string, x *stackAnswer) {
			k := url.QueryEscape(strings.Join(frames, "\n"))
			to[k] = total{to[k].n + x.Count, to[k].ns + x.SumNs}
		}
		for i := range stacks {
			x := &stacks[i]
			add(exact, x.Stack, x)
			for n := range x.Stack {
				add(below, x.Stack[:n+1], x)
			}
		}
		for _, sort := range []string{"start", "duration"} {
			rows := p + "/operations?operation=kernel&limit=500&sort=" + sort + "&stack="
			for stack, want := range exact {
				n, ns := sum(t, s, rows+stack+"&stack_exact=true")
				assert.Equal(t, want, total{n, ns}, "exactly %s", stack)
			}
			for stack, want := range below {
				n, ns := sum(t, s, rows+stack)
				assert.Equal(t, want, total{n, ns}, stack)
				if want != exact[stack] {
					inner++
				}
			}
		}
	}
	assert.Positive(t, inner, "no stack is a part of another")
}
