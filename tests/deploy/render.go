// Renders a Helm chart's templates with Go's own text/template and the few functions that ours use, where there is no
// helm. Reads {"Values":..., "Release":..., "Chart":...} as JSON; prints the documents.
package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

func indent(width int, text string) string {
	return "\n" + strings.Repeat(" ", width) + strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", width))
}

func number(value interface{}) int64 {
	switch known := value.(type) {
	case float64:
		return int64(known)
	case int:
		return int64(known)
	case int64:
		return known
	}
	panic(fmt.Sprintf("not a number: %v", value))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	chart := os.Args[1]
	var facts map[string]interface{}
	check(json.NewDecoder(os.Stdin).Decode(&facts))
	base := filepath.Base(chart) + "/templates"
	facts["Template"] = map[string]interface{}{"BasePath": base}
	all := template.New("all").Option("missingkey=error")
	all.Funcs(template.FuncMap{
		"include": func(name string, with interface{}) (string, error) {
			var out strings.Builder
			err := all.ExecuteTemplate(&out, name, with)
			return out.String(), err
		},
		"toYaml": func(value interface{}) (string, error) { // JSON is YAML
			text, err := json.Marshal(value)
			return string(text), err
		},
		"fail":       func(text string) (string, error) { return "", fmt.Errorf("%s", text) },
		"nindent":    indent,
		"quote":      func(value interface{}) string { return fmt.Sprintf("%q", fmt.Sprint(value)) },
		"trunc":      func(length int, text string) string { return text[:min(length, len(text))] },
		"trimSuffix": func(suffix, text string) string { return strings.TrimSuffix(text, suffix) },
		"default": func(other, value interface{}) interface{} {
			if value == nil || value == "" {
				return other
			}
			return value
		},
		"until": func(count int) []int {
			numbers := make([]int, count)
			for index := range numbers {
				numbers[index] = index
			}
			return numbers
		},
		"int":       func(value interface{}) int { return int(number(value)) },
		"int64":     number,
		"add":       func(one, other interface{}) int64 { return number(one) + number(other) },
		"sha256sum": func(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) },
	})
	files, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	check(err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		check(err)
		_, err = all.New(base + "/" + filepath.Base(file)).Parse(string(text))
		check(err)
	}
	for _, file := range files {
		if filepath.Ext(file) == ".yaml" {
			fmt.Println("---")
			check(all.ExecuteTemplate(os.Stdout, base+"/"+filepath.Base(file), facts))
		}
	}
}

func min(one, other int) int {
	if one < other {
		return one
	}
	return other
}
