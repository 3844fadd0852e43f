// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestReader(t *testing.T) {
	values := map[string]string{
		"ON": "Yes", "OFF": "0", "PERHAPS": "perhaps", "N": "7", "LOW": "-2", "BIG": "9999999999", "D": "200ms", "SHORT": "1ms", "NONE": "never",
	}
	r := Reader{Getenv: func(v string) string { return values[v] }}
	assert.True(t, r.Bool("ON"))
	assert.False(t, r.Bool("OFF"))
	assert.False(t, r.Bool("UNSET"))
	assert.Equal(t, 7, r.Int("N", 0))
	assert.Zero(t, r.Int("UNSET", 3))
	assert.Equal(t, 200*time.Millisecond, r.Duration("D", 0, time.Second))
	assert.Equal(t, time.Second, r.Duration("UNSET", 0, time.Second))
	assert.NoError(t, r.Err())

	assert.False(t, r.Bool("PERHAPS"))
	assert.Zero(t, r.Int("LOW", -1))
	assert.Zero(t, r.Int("BIG", 0))
	assert.Equal(t, time.Second, r.Duration("SHORT", time.Minute, time.Second))
	assert.Equal(t, time.Second, r.Duration("NONE", 0, time.Second))
	assert.EqualError(t, r.Err(), `PERHAPS is "perhaps"; it must be true or false
LOW is "-2"; it must be a whole number of -1 to 2147483647
BIG is "9999999999"; it must be a whole number of 0 to 2147483647
SHORT is "1ms"; it must be a duration of at least 1m0s, such as 1500us, 200ms or 5s
NONE is "never"; it must be a duration of at least 0s, such as 1500us, 200ms or 5s`)
}

func TestNamed(t *testing.T) {
	flag := func(variable string) string {
		if variable == "A" {
			return "--a"
		}
		return variable
	}
	other := errors.New("A stays in a text that is not of this package")
	err := errors.Join(Bad("A", "A", "a number"), errors.Join(Wrong("B", "%d A", 3), other), Wrong("A", "no"))
	assert.EqualError(t, Named(err, flag), `--a is "A"; it must be a number
B: 3 A
A stays in a text that is not of this package
--a: no`)
	assert.Equal(t, other, Named(other, flag))
	assert.NoError(t, Named(nil, flag))
}
