// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import "context"

type baselineAnswer struct {
	Name    string `json:"name"`
	Session string `json:"session"`
}

// baselines lists the names of sessions that others are compared with.
func (s *server) baselines(ctx context.Context, r *request) (any, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	found, err := s.store.Baselines(ctx, r.project)
	if err != nil {
		return nil, err
	}
	list := []baselineAnswer{}
	for _, b := range found {
		list = append(list, baselineAnswer(b))
	}
	return map[string]any{"baselines": list}, nil
}

// setBaseline gives a session a name.
func (s *server) setBaseline(ctx context.Context, r *request) (any, error) {
	id := r.text("session", 256)
	if id == "" {
		r.fail("session", "must be the id of a session")
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	return nil, s.store.SetBaseline(ctx, r.project, r.PathValue("name"), id)
}

// deleteBaseline removes a name. The session stays.
func (s *server) deleteBaseline(ctx context.Context, r *request) (any, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	return nil, s.store.SetBaseline(ctx, r.project, r.PathValue("name"), "")
}
