// SPDX-License-Identifier: Apache-2.0

package store

import "context"

// Tables is what a [Backend] may also implement: its rows as tables with plain columns, which
// docs/export.md describes. Other stores have no such method, and callers report that.
type Tables interface {
	// WriteParquet writes one table of a session to a new file. Sessions that do not exist give
	// ErrNotFound, and unknown tables ErrInvalid.
	WriteParquet(ctx context.Context, q TableQuery, file string) error
	// SQL runs a SELECT over the tables of one session. The statement can read nothing else and
	// change nothing. It ends with ctx. An error that wraps ErrInvalid is about the statement.
	SQL(ctx context.Context, q SQLQuery) (SQLAnswer, error)
}

// StackSums is what a [Backend] may also implement: it says whether Reader.Stacks of a whole session reads sums,
// so that the size of the session does not matter.
type StackSums interface {
	StacksFromSums(ctx context.Context, project, session string) (bool, error)
}

// TableNames are the tables of a session.
var TableNames = [...]string{"operations", "spans", "samples", "logs", "points"}

// TableQuery selects the rows of a table whose start or time is in the interval. Operations and
// spans that begin before it and end in it are included.
type TableQuery struct {
	Project, Session string
	Table            string // one of TableNames
	From, To         int64
}

// SQLQuery is a SELECT.
type SQLQuery struct {
	Project, Session string
	Statement        string
	// Rows and Bytes bound the answer. Bytes are of the JSON of all rows.
	Rows, Bytes int
}

// SQLAnswer is the answer of a SELECT.
type SQLAnswer struct {
	Columns []SQLColumn
	// Rows is a JSON list for each row. Numbers are exact. Bytes are hexadecimal, times are as in
	// RFC 3339, and NaN and infinity are strings.
	Rows [][]byte
	// Truncated says that rows are missing because of a limit.
	Truncated bool
}

// SQLColumn is a column of an answer. Type is its type in the store.
type SQLColumn struct {
	Name string `json:"name"`
	Type string `json:"type"`
}
