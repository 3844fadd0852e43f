// SPDX-License-Identifier: Apache-2.0

package store

// ValueKind is the type of a Value. The numbers are stored.
type ValueKind uint8

// Types of values, as in OTLP.
const (
	KindEmpty ValueKind = iota
	KindString
	KindBool
	KindInt
	KindDouble
	KindBytes
	KindSlice
	KindMap
)

// Value is a value of an attribute or a body, with its exact type.
type Value struct {
	Kind   ValueKind
	Str    string // also of KindBytes
	Int    int64  // KindBool: 0 or 1
	Double float64
	Slice  []Value
	Map    Attrs
}

// Attr is one attribute.
type Attr struct {
	Key   string
	Value Value
}

// Attrs are attributes, sorted by key. Keys are unique.
type Attrs []Attr
