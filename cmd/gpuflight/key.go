// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpuflight/gpuflight/internal/apikey"
)

const keyUsage = `gpuflight key edits the file with the API keys of a Collector, which its extension api_key_auth reads. A
running Collector uses the changes at once. Run the command as the Collector's user.

Usage:
  gpuflight key [flags] create NAME --scope SCOPES   print a new key, which is shown only once
  gpuflight key [flags] list
  gpuflight key [flags] revoke ID...                 make keys invalid, also in browsers that are logged in

Scopes:
  read     query and export sessions, also in the web UI
  ingest   send telemetry
  admin    read, and pin, delete and import sessions

A key gives access to one project: what it sends is stored there, and what it reads comes from there. Without
--project, that is the default project, which also has what the Collector gets without a key.

Examples:
  gpuflight key create ci --scope ingest --project team-a --expires 90d
  gpuflight key create alice --scope read,ingest
  gpuflight key revoke k3v9q2mf

Flags:
`

// keyFile returns the file of the Collector's configurations.
func keyFile() string {
	if state := os.Getenv("GPUFLIGHT_STATE"); state != "" {
		return filepath.Join(state, filepath.Base(apikey.DefaultFile))
	}
	return apikey.DefaultFile
}

func runKey(_ context.Context, args []string, stdout io.Writer) error {
	fs := flag.NewFlagSet("key", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	path := fs.String("file", keyFile(), "the key `file`; GPUFLIGHT_STATE changes its folder")
	scopes := fs.String("scope", "", "scopes of the new key, separated by commas")
	project := fs.String("project", "", "project of the new key (default: the default project)")
	expires := fs.String("expires", "", "life of the new key, for example 12h or 90d (default: no limit)")
	rest, err := parse(fs, args, keyUsage, stdout)
	if err != nil {
		return err
	}
	action := ""
	if len(rest) > 0 {
		action, rest = rest[0], rest[1:]
	}
	now := time.Now()
	switch {
	case action == "create" && len(rest) == 1:
		return createKey(*path, rest[0], *project, *scopes, *expires, now, stdout)
	case action == "list" && len(rest) == 0:
		return listKeys(*path, now, stdout)
	case action == "revoke" && len(rest) > 0:
		return revokeKeys(*path, rest, stdout)
	}
	return &usageError{errors.New("use create, list or revoke with the arguments that --help shows")}
}

func createKey(path, name, project, scopes, expires string, now time.Time, stdout io.Writer) error {
	var list []apikey.Scope
	for s := range strings.SplitSeq(scopes, ",") {
		if s == "" {
			return &usageError{errors.New("--scope is empty: use read, ingest, admin, or several with commas")}
		}
		scope, err := apikey.ParseScope(s)
		if err != nil {
			return &usageError{fmt.Errorf("--scope: %w", err)}
		}
		list = append(list, scope)
	}
	var end time.Time
	if expires != "" {
		d, err := parseLife(expires)
		if err != nil {
			return &usageError{fmt.Errorf("--expires %q: write for example 12h or 90d", expires)}
		}
		end = now.Add(d)
	}
	key, text, err := apikey.New(name, project, list, now, end)
	if err != nil {
		return &usageError{err}
	}
	if err := apikey.Edit(path, func(keys []apikey.Key) ([]apikey.Key, error) { return append(keys, key), nil }); err != nil {
		return err
	}
	fmt.Fprintln(stdout, text)
	return nil
}

// parseLife parses a positive duration. It adds the unit d for days.
func parseLife(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		var n uint64
		if n, err = strconv.ParseUint(days, 10, 16); err == nil {
			d = time.Duration(n) * 24 * time.Hour
		}
	}
	if err == nil && d <= 0 {
		err = errors.New("it must be positive")
	}
	return d, err
}

func listKeys(path string, now time.Time, stdout io.Writer) error {
	keys, err := apikey.Load(path)
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintln(stdout, "no keys")
		return nil
	}
	if err != nil {
		return err
	}
	if len(keys) == 0 {
		fmt.Fprintln(stdout, "no keys")
		return nil
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tNAME\tPROJECT\tSCOPES\tCREATED\tEXPIRES")
	for _, k := range keys {
		end := "never"
		if !k.Expires.IsZero() {
			end = k.Expires.Local().Format(time.DateTime)
		}
		if k.Expired(now) {
			end = "expired " + end
		}
		scopes := make([]string, len(k.Scopes))
		for i, s := range k.Scopes {
			scopes[i] = string(s)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", k.ID, k.Name, cmp.Or(k.Project, "(default)"), strings.Join(scopes, ","),
			k.Created.Local().Format(time.DateTime), end)
	}
	return w.Flush()
}

// revokeKeys removes keys by their ids. It also accepts whole keys, and changes nothing if one is
// unknown.
func revokeKeys(path string, ids []string, stdout io.Writer) error {
	for i, id := range ids {
		ids[i] = cmp.Or(apikey.ID(id), id)
	}
	err := apikey.Edit(path, func(keys []apikey.Key) ([]apikey.Key, error) {
		for _, id := range ids {
			i := slices.IndexFunc(keys, func(k apikey.Key) bool { return k.ID == id })
			if i < 0 {
				return nil, fmt.Errorf("no key has the id %.20q: list shows the ids", id)
			}
			keys = slices.Delete(keys, i, i+1)
		}
		return keys, nil
	})
	if err != nil {
		return err
	}
	for _, id := range ids {
		fmt.Fprintf(stdout, "revoked %s\n", id)
	}
	return nil
}
