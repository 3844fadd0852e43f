// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

func (s *server) health(ctx context.Context, r *request) (any, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	if _, err := s.store.Sessions(ctx, store.SessionQuery{Project: r.project, Limit: 1}); err != nil {
		return nil, err
	}
	return map[string]string{"status": "ok", "version": s.version}, nil
}

func (s *server) sessions(ctx context.Context, r *request) (any, error) {
	q := store.SessionQuery{Project: r.project, Text: r.text("q", 1000), Service: r.text("service", 1000), Host: r.text("host", 1000), Run: r.text("run", 1000)}
	q.From, q.To = r.absoluteInterval()
	limit := int(r.integer("limit", 100, 1, 1000))
	q.After = r.text("cursor", 1000)
	q.Limit = min(limit+1, 1000)
	if err := r.check(); err != nil {
		return nil, err
	}
	list, err := s.store.Sessions(ctx, q)
	if errors.Is(err, store.ErrNotFound) {
		return nil, &status{http.StatusBadRequest, "parameter cursor: the session does not exist"}
	}
	if err != nil {
		return nil, err
	}
	answer := struct {
		Sessions []sessionAnswer `json:"sessions"`
		Next     string          `json:"next,omitempty"`
	}{Sessions: []sessionAnswer{}}
	for i := range list[:min(len(list), limit)] {
		answer.Sessions = append(answer.Sessions, s.session(&list[i]))
	}
	if len(list) > limit || limit == 1000 && len(list) == limit {
		answer.Next = list[limit-1].ID
	}
	return answer, nil
}

func (r *request) baseText() string { return strconv.FormatInt(r.base, 10) }

func (s *server) overview(ctx context.Context, r *request) (any, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	lanes, err := s.store.Lanes(ctx, r.project, r.session)
	if err != nil {
		return nil, err
	}
	answer := struct {
		Base     string        `json:"base"`
		Session  sessionAnswer `json:"session"`
		Resource attributes    `json:"resource"`
		Lanes    []*laneAnswer `json:"lanes"`
	}{r.baseText(), s.session(&r.info), attributes(r.info.Resource), []*laneAnswer{}}
	for i := range lanes {
		answer.Lanes = append(answer.Lanes, r.lane(&lanes[i]))
	}
	return answer, nil
}

func (s *server) trace(ctx context.Context, r *request) (any, error) {
	id := r.traceOf("trace", r.PathValue("trace"))
	if err := r.check(); err != nil {
		return nil, err
	}
	refs, err := s.store.Trace(ctx, r.project, id)
	if err != nil {
		return nil, err
	}
	type ref struct {
		Session    string `json:"session"`
		Start      string `json:"start"`
		DurationNs int64  `json:"duration_ns"`
	}
	list := []ref{}
	for _, t := range refs {
		list = append(list, ref{t.Session, strconv.FormatInt(t.FirstNs, 10), t.LastNs - t.FirstNs})
	}
	return map[string]any{"trace": traceText(id), "sessions": list}, nil
}

type usageGroup struct {
	Name     string `json:"name"`
	Sessions int64  `json:"sessions"`
	Kernels  int64  `json:"kernels"`
	KernelNs int64  `json:"kernel_ns"`
	// Path is that of the scope, with by=scope and the parameter of.
	Path *uint32 `json:"path,omitempty"`
}

func (s *server) usage(ctx context.Context, r *request) (any, error) {
	const session, scope = 4, 5
	by := r.choice("by", "service", "namespace", "host", "run", "session", "scope")
	q := store.SessionQuery{Project: r.project, Service: r.text("service", 1000), Host: r.text("host", 1000), Limit: 1000}
	q.From, q.To = r.absoluteInterval()
	_, one := r.values["of"]
	of := r.text("of", 10_000)
	if one && by == session {
		r.fail("of", "cannot be used with by=session")
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	most := 999
	if by == scope {
		most = 100
		q.Limit = most + 1
	}
	list, err := s.store.Sessions(ctx, q)
	if err != nil {
		return nil, err
	}
	groups := map[string]*usageGroup{}
	add := func(name string, kernels, ns int64) {
		g := groups[name]
		if g == nil {
			g = &usageGroup{Name: name}
			groups[name] = g
		}
		g.Sessions++
		g.Kernels += kernels
		g.KernelNs += ns
	}
	for i := range list[:min(len(list), most)] {
		info := &list[i]
		if by != scope {
			name := []string{info.Service, stringOf(info.Resource, semconv.ServiceNamespace), info.Host, info.Run, info.ID}[by]
			if one && name != of {
				continue
			}
			if one {
				name = info.ID
			}
			add(name, info.Operations[store.OpKernel], info.KernelNs)
			continue
		}
		nodes, err := s.store.Scopes(ctx, r.project, info.ID)
		if errors.Is(err, store.ErrNotFound) {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		list := tree(nodes)
		for i, n := range list {
			name, t := n.Name, n.Total
			if i == 0 {
				name, t = "", n.Self // the root: outside every scope
			} else if n.Depth != 1 {
				continue
			}
			switch {
			case t.Kernels == 0 || one && name != of:
			case one:
				// The scope can have the name of the root, which is empty.
				groups[fmt.Sprint(info.ID, "/", n.Path)] = &usageGroup{info.ID, 1, t.Kernels, t.KernelNs, &n.Path}
			default:
				add(name, t.Kernels, t.KernelNs)
			}
		}
	}
	sorted := slices.SortedFunc(maps.Values(groups), func(a, b *usageGroup) int {
		return cmp.Or(cmp.Compare(b.KernelNs, a.KernelNs), cmp.Compare(a.Name, b.Name))
	})
	return map[string]any{"groups": all(sorted), "truncated": len(list) > most}, nil
}

func (s *server) pin(pinned bool) func(context.Context, *request) (any, error) {
	return func(ctx context.Context, r *request) (any, error) {
		if err := r.check(); err != nil {
			return nil, err
		}
		return nil, s.store.Pin(ctx, r.project, r.session, pinned)
	}
}

func (s *server) delete(ctx context.Context, r *request) (any, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	return nil, s.store.Delete(ctx, r.project, r.session)
}

// fileName replaces what is no letter, digit, dot, dash or underscore.
func fileName(s string) string {
	name := strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' {
			return c
		}
		return '_'
	}, s)
	return fmt.Sprintf("%.100s", name)
}
