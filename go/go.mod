module waveinfer

go 1.24
