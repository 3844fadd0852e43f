// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestRead(t *testing.T) {
	var (
		on, off   bool
		n         int
		d         = time.Second
		text      string
		list      []string
		share     float64
		none, few int
	)
	table := []Setting{
		{Variable: "ON", Set: To(&on, Bool)},
		{Variable: "OFF", Set: To(&off, Bool)},
		{Variable: "N", Set: To(&n, Int(0, math.MaxInt32))},
		{Variable: "D", Set: To(&d, Duration(time.Millisecond))},
		{Variable: "TEXT", Set: To(&text, Text)},
		{Variable: "LIST", Set: To(&list, List)},
		{Variable: "SHARE", Set: To(&share, Share)},
		{Variable: "NONE", Set: To(&none, ZeroIsNone(Int(-1, 9)))},
		{Variable: "FEW", Set: To(&few, ZeroIsNone(Int(-1, 9)))},
		{Variable: "OTHER", Set: func(string) error { return errors.New("own text") }},
		{Variable: "NOT_READ"},
	}
	read := func(values map[string]string) error {
		return Read(table, func(v string) string { return values[v] })
	}
	assert.NoError(t, read(nil))
	assert.Equal(t, time.Second, d, "an unset variable leaves the default")
	assert.NoError(t, read(map[string]string{
		"ON": " Yes ", "OFF": "0", "N": "7", "D": "200ms", "TEXT": " x", "LIST": "a, b,,", "SHARE": "2 %", "NONE": "0", "FEW": "3", "NOT_READ": "x",
	}))
	assert.True(t, on)
	assert.False(t, off)
	assert.Equal(t, 7, n)
	assert.Equal(t, 200*time.Millisecond, d)
	assert.Equal(t, " x", text)
	assert.Equal(t, []string{"a", "b"}, list)
	assert.InDelta(t, 0.02, share, 1e-15)
	assert.Equal(t, -1, none)
	assert.Equal(t, 3, few)

	assert.EqualError(t, read(map[string]string{"ON": "perhaps", "N": "9999999999", "D": "1us", "SHARE": "two", "NONE": "-2", "OTHER": "x"}),
		`ON is "perhaps"; it must be true or false
N is "9999999999"; it must be a whole number of 0 to 2147483647
D is "1us"; it must be a duration of at least 1ms, such as 1500us, 200ms or 5s
SHARE is "two"; it must be a share above 0 and at most 1, such as 2% or 0.02
NONE is "-2"; it must be a whole number of -1 to 9
OTHER: own text`)
	assert.True(t, on, "an invalid value changes nothing")
	assert.Equal(t, 7, n)
	assert.Equal(t, -1, none)
}

func TestShare(t *testing.T) {
	for text, want := range map[string]float64{"2%": 0.02, " 2 % ": 0.02, "0.02": 0.02, "0.5%": 0.005, "100%": 1, "1": 1} {
		got, err := Share(text)
		assert.NoError(t, err, text)
		assert.InDelta(t, want, got, 1e-15, text)
	}
	for _, text := range []string{"", "%", "0", "0%", "-1%", "101%", "2", "NaN", "Inf%", "two", "2%%", "1e-400"} {
		_, err := Share(text)
		assert.Error(t, err, text)
	}
}

func TestNamed(t *testing.T) {
	flag := func(variable string) string {
		if variable == "A" {
			return "--a"
		}
		return variable
	}
	other := errors.New("A stays in a text that is not of this package")
	err := errors.Join(&Error{"A", ` is "A"; it must be a number`}, errors.Join(Wrong("B", "%d A", 3), other), Wrong("A", "no"))
	assert.EqualError(t, Named(err, flag), `--a is "A"; it must be a number
B: 3 A
A stays in a text that is not of this package
--a: no`)
	assert.Equal(t, other, Named(other, flag))
	assert.NoError(t, Named(nil, flag))
}
